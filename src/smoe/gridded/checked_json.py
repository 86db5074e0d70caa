"""Small JSON files that know their format, version and checksum: an edited or damaged one is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from smoe._files import write_atomically
from smoe.errors import DataError


def checksum(content: dict[str, Any]) -> str:
    """SHA-256 of plain values; floats count with all their digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_checked_json(path: Path, content: dict[str, Any], format: str, version: int) -> None:
    """Writes plain values with format, version and checksum, whole or not at all."""
    head = {"format": format, "version": version, "checksum": checksum(content)}
    text = json.dumps({**head, "content": content}, indent=1) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def read_checked_json(path: Path, format: str, version: int, writer: str = "smoe data prepare") -> dict[str, Any]:
    """Reads what `write_checked_json` wrote.

    Args:
        path: File.
        format: Format that it must have.
        version: Version of the format.
        writer: Command that writes such files, which errors name.

    Raises:
        DataError: If it is of another format or version, damaged or edited.
    """
    remedy = f"delete {path.parent} and run {writer} again"
    try:
        whole = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is damaged ({error}): {remedy}") from error
    if not isinstance(whole, dict) or whole.get("format") != format:
        raise DataError(f"{path} was not written by {writer}: name the folder of a {format}")
    if whole.get("version") != version:
        raise DataError(
            f"{path} has version {whole.get('version')} of the format, this smoe reads version {version}: "
            f"{remedy}, or use the smoe that wrote it"
        )
    content = whole.get("content")
    if not isinstance(content, dict) or checksum(content) != whole.get("checksum"):
        raise DataError(f"{path} was edited or damaged: its checksum does not fit; {remedy}")
    return content


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Names of the entries in which two dictionaries differ."""
    return [name for name in new if checksum({"": old.get(name)}) != checksum({"": new[name]})]
