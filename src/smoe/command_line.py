"""Reads flags into a dataclass by tyro, and shortens its messages to one line. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from smoe.errors import printable

T = TypeVar("T")


class UsageError(Exception):
    """A command that cannot be understood."""


@contextlib.contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Shows warnings as a line on the error stream each, once, without the code that they come from."""
    shown: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        line = f"warning: {printable(str(message))}\n"
        if line not in shown:
            shown.add(line)
            sys.stderr.write(line)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def parse(target: type[T], args: Sequence[str], *, prog: str, default: T | None = None) -> T:
    """The dataclass `target` as the flags describe it; `--help` prints and exits.

    Raises:
        UsageError: For an unknown flag or a value that does not fit, in one line with a suggestion.
    """
    import tyro

    # A recipe's model has the class it has by name; its flags are those of that class.
    options: dict[str, Any] = {"prog": prog, "config": (tyro.conf.AvoidSubcommands,), "registry": _registry()}
    options |= {} if default is None else {"default": default}
    message, help = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            return tyro.cli(target, args=list(args), **options)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
    # A flag with a typo is the mistake, whatever else is missing for it.
    with contextlib.redirect_stdout(help), contextlib.suppress(SystemExit):
        tyro.cli(target, args=["--help"], **options)
    known = set(re.findall(r"--[a-z][\w.-]*", help.getvalue()))
    flags = (arg.partition("=")[0] for arg in args if re.match("--[a-z]", arg))
    unknown = next((flag for flag in flags if flag.replace("_", "-") not in known), None)
    if unknown is not None:
        near = difflib.get_close_matches(unknown, known, n=1)
        text = f"Unrecognized options: {unknown}{f'; did you mean {near[0]}?' if near else ''}"
    else:
        text = _one_line(message.getvalue())
    raise UsageError(f"{text} (see {prog} --help)")


def _registry() -> Any:
    """How rules and dampings are written on a command line: in their text forms, such as `rc(weight=0.1)`."""
    import tyro

    from smoe.rules import Damping, Rule, resolve_damping, resolve_rule

    registry = tyro.constructors.ConstructorRegistry()

    def read(text: str, resolve: Any) -> Any:
        try:
            return resolve(text)
        except ValueError as error:
            raise UsageError(str(error)) from None

    @registry.primitive_rule
    def of_rule(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec | None:
        # A recipe without a damping of its own has None there, which is written as `none`.
        if info.type not in (Rule, Damping, Damping | None):
            return None
        kind, resolve = (Rule, resolve_rule) if info.type is Rule else (Damping | None, resolve_damping)
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="RULE" if info.type is Rule else "DAMPING",
            instance_from_str=lambda args: read(args[0], resolve),
            is_instance=lambda instance: isinstance(instance, kind),
            str_from_instance=lambda instance: ["none" if instance is None else str(instance)],
        )

    return registry


def _one_line(message: str) -> str:
    # tyro draws a box, in colours or plain, of parts between rules: a title, the message, perhaps similar flags.
    plain = re.sub(r"\x1b\[[0-9;]*m", "", message).translate(str.maketrans("─│╭╮╰╯", "-     "))
    _, *parts = (" ".join(part.split()) for part in re.split(r"-{4,}", plain))
    if not parts:
        return " ".join(plain.split())
    text = parts[0].rstrip(".")
    choice = re.search(r"invalid choice '(.*?)' for .* Expected one of \((.*)\)", text)
    near = difflib.get_close_matches(choice[1], re.findall(r"'(.*?)'", choice[2]), n=1) if choice else []
    return f"{text}; did you mean {near[0]}?" if near else text
