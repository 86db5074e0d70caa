"""Reads flags into a dataclass by tyro, and shortens its complaints to one line."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro

from smoe.cli.main import UsageError

T = TypeVar("T")


def parse(target: type[T], args: Sequence[str], *, prog: str, default: T | None = None) -> T:
    """The dataclass `target` as the flags describe it; `--help` prints and exits.

    Raises:
        UsageError: for an unknown flag or a value that does not fit, in one line with a suggestion.
    """
    options: dict[str, Any] = {} if default is None else {"default": default}
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            # A recipe's model is of the class it has by name; its flags are those of that class.
            config = (tyro.conf.AvoidSubcommands,)
            return tyro.cli(target, args=list(args), prog=prog, config=config, **options)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise UsageError(f"{_one_line(complaint.getvalue())} (see {prog} --help)") from None


def _one_line(complaint: str) -> str:
    # tyro draws a box, in colours or plain, of parts between rules: a title, the complaint, perhaps similar flags.
    plain = re.sub(r"\x1b\[[0-9;]*m", "", complaint).translate(str.maketrans("─│╭╮╰╯", "-     "))
    _, *parts = (" ".join(part.split()) for part in re.split(r"-{4,}", plain))
    if not parts:
        return " ".join(plain.split())
    text = parts[0].rstrip(".")
    rest = " ".join(parts[1:])
    similar = re.search(r"Perhaps you meant: (--\S+)", rest)
    if similar:
        return f"{text}; did you mean {similar[1]}?"
    # A required flag with a typo is both missing and unknown, and only the second tells the mistake.
    unknown = re.search(r"Unrecognized options: (--[^\s=]+)", rest)
    meant = difflib.get_close_matches(unknown[1], re.findall(r"--[\w.-]+", text), n=1) if unknown else []
    if unknown and meant:
        return f"Unrecognized options: {unknown[1]}; did you mean {meant[0]}?"
    choice = re.search(r"invalid choice '(.*?)' for .* Expected one of \((.*)\)", text)
    near = difflib.get_close_matches(choice[1], re.findall(r"'(.*?)'", choice[2]), n=1) if choice else []
    return f"{text}; did you mean {near[0]}?" if near else text
