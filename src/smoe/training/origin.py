"""Proof that files of a run were written by this user: codes with a key that nobody else has. Imports no torch.

A recipe.json names places to read data from, and one from others must not choose them. The codes lie beside the files,
so that a run can be moved; the key lies in the user's state folder. On a machine with another key nothing is proven.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from smoe._files import write_atomically

ORIGIN_FILE = "origin.json"
"""Name of the record."""

_KEY_SIZE = 32
# The code of the file that is being replaced is kept: a kill leaves that file or the new one.
_NUM_CODES = 2


class OriginError(Exception):
    """There is no key to prove an origin with, and none can be made."""


def record_origin(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Records that this user writes files. Call it before they are written.

    Args:
        folder: Folder of the files.
        contents: Content of each file, by its name.

    Raises:
        OriginError: If there is no key and none can be made.
        OSError: If the record cannot be written.
    """
    key = _own_key(make=True)
    codes = _read_codes(folder)
    recorded = dict(codes)
    for name, content in contents.items():
        code = _code(key, name, content)
        recorded[name] = [code, *(other for other in codes.get(name, []) if other != code)][:_NUM_CODES]
    if recorded != codes:
        text = json.dumps(recorded, indent=1) + "\n"
        write_atomically(folder / ORIGIN_FILE, lambda file: file.write(text.encode()))


def is_own(folder: Path, name: str, content: bytes) -> bool:
    """Returns whether it is recorded that this user wrote a file with this content.

    Args:
        folder: Folder of the file, which may have been moved.
        name: Name of the file.
        content: Its content.
    """
    codes = _read_codes(folder).get(name, [])
    if not codes:
        return False
    try:
        expected = _code(_own_key(make=False), name, content)
    except OriginError:
        return False
    return any(hmac.compare_digest(code, expected) for code in codes)


def state_folder() -> Path:
    """Returns the folder of what this user's programs keep: `$XDG_STATE_HOME/smoe`, or `~/.local/state/smoe`.

    Raises:
        OriginError: If the user has no home.
    """
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    if named.is_absolute():
        return named / "smoe"
    try:
        return Path.home() / ".local" / "state" / "smoe"
    except RuntimeError as error:
        raise OriginError("there is no home folder to keep a key in") from error


def _code(key: bytes, name: str, content: bytes) -> str:
    return hmac.new(key, name.encode() + b"\0" + content, "sha256").hexdigest()


def _read_codes(folder: Path) -> dict[str, list[str]]:
    """The recorded codes by file; none if the record is missing or damaged, which proves nothing."""
    file = folder / ORIGIN_FILE
    try:
        # A record has some hundred bytes; a file from others may have any number.
        found = json.loads(file.read_bytes()) if file.is_file() and file.stat().st_size < 10_000 else {}
    except (OSError, ValueError, RecursionError):
        return {}
    entries = found.items() if isinstance(found, dict) else ()
    return {
        name: [code for code in codes if isinstance(code, str) and code.isascii()]
        for name, codes in entries
        if isinstance(codes, list)
    }


def _own_key(*, make: bool) -> bytes:
    """The key of this user.

    Raises:
        OriginError: If there is none and none is to be made or can be, or others can read or choose it.
    """
    file = state_folder() / "origin.key"
    try:
        if make and not file.exists():
            _make_key(file)
        return _read_key(file)
    except OSError as error:
        raise OriginError(f"the key {file} cannot be used: {error.strerror or error}") from error


def _make_key(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as new:
            new.write(secrets.token_bytes(_KEY_SIZE))
            new.flush()
            os.fsync(new.fileno())
        try:
            # Unlike a rename, a link replaces nothing: of several processes and machines that make a key, one wins.
            os.link(temporary, file)
        except FileExistsError:
            return
    finally:
        temporary.unlink(missing_ok=True)


def _read_key(file: Path) -> bytes:
    with file.open("rb") as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid != os.geteuid():
            raise OriginError(f"the key {file} cannot be used: others can read or write it; remove it, or chmod 600")
        key = opened.read(_KEY_SIZE + 1)
    if len(key) != _KEY_SIZE:
        raise OriginError(f"the key {file} cannot be used: it is damaged; remove it")
    return key
