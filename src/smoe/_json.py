"""Dataclasses as plain values: dictionaries, lists, numbers and text, as JSON has them. Imports no torch."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from smoe.errors import SmoeError, suggest
from smoe.rules import RULES, Rule


class RecipeError(SmoeError):
    """A recipe that does not exist, or values that do not make one."""


def to_plain(value: Any) -> Any:
    """A dataclass as dictionaries, lists, numbers and text, with every field.

    Where a field may hold one of several classes, the dictionary has the class's name under `type`; a rule has the name
    of its short form.
    """
    if isinstance(value, Rule):
        return {"type": value.name, **_fields_to_plain(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields_to_plain(value)
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value


def from_plain(kind: type[Any], plain: Any, place: str = "") -> Any:
    """The inverse of `to_plain`. Every value is checked against the type of its field."""
    if not isinstance(plain, dict):
        raise RecipeError(f"{place or kind.__name__} must be a dictionary, got {shorten(plain)}")
    hints = type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    for name in plain:
        if name not in names:
            raise RecipeError(f"{place or kind.__name__} has no field {name!r}; {suggest(str(name), names)}")
    missing = [name for name in names if name not in plain]
    if missing:
        raise RecipeError(f"{place or kind.__name__} lacks the field {missing[0]!r}")
    prefix = f"{place}." if place else ""
    values = {name: _restore(hints[name], value, f"{prefix}{name}") for name, value in plain.items()}
    try:
        return kind(**values)
    except ValueError as error:
        raise RecipeError(f"{place or kind.__name__}: {error}") from error


def shorten(value: Any) -> str:
    """A value as Python writes it, in at most 100 characters: a message is one line, whatever a file holds."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by their names with dots, such as `training.batch_size`."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


@functools.cache
def type_hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def is_path(hint: Any) -> bool:
    """Whether a field of this type may hold a path."""
    return Path in _options(hint)


def classes_of(hint: Any) -> list[type[Any]]:
    """Dataclasses that a field of this type may hold."""
    return [option for option in _options(hint) if dataclasses.is_dataclass(option) and isinstance(option, type)]


def _fields_to_plain(value: Any) -> dict[str, Any]:
    hints = type_hints(type(value))
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        part = getattr(value, field.name)
        is_one_of_several = len(classes_of(hints[field.name])) > 1 and dataclasses.is_dataclass(part)
        name = {"type": type(part).__name__} if is_one_of_several and not isinstance(part, Rule) else {}
        plain[field.name] = {**name, **to_plain(part)} if name else to_plain(part)
    return plain


def _restore(hint: Any, value: Any, place: str) -> Any:
    if value is None:
        if {type(None), Any} & set(_options(hint)):
            return None
        raise RecipeError(f"{place} must not be null")
    classes = classes_of(hint)
    if classes:
        return _restore_class(classes, value, place)
    if typing.get_origin(hint) is tuple or any(typing.get_origin(option) is tuple for option in _options(hint)):
        return _restore_tuple(hint, value, place)
    if typing.get_origin(hint) is dict and isinstance(value, dict):
        return {key: _restore(typing.get_args(hint)[1], item, f"{place}.{key}") for key, item in value.items()}
    for option in _options(hint):
        if _is_of(option, value):
            return Path(value) if option is Path else float(value) if option is float else value
    expected = " or ".join(_describe(option) for option in _options(hint))
    raise RecipeError(f"{place} must be {expected}, got {shorten(value)}")


def _restore_class(classes: list[type[Any]], value: Any, place: str) -> Any:
    if not isinstance(value, dict):
        raise RecipeError(f"{place} must be a dictionary, got {shorten(value)}")
    is_rule = any(issubclass(kind, Rule) for kind in classes)
    by_name: dict[str, type[Any]] = dict(RULES) if is_rule else {kind.__name__: kind for kind in classes}
    if len(by_name) == 1 and "type" not in value:
        return from_plain(classes[0], value, place)
    name = value.get("type")
    if not isinstance(name, str) or name not in by_name:
        raise RecipeError(f"{place} must be one of {', '.join(by_name)}, got {shorten(name)}")
    return from_plain(by_name[name], {key: item for key, item in value.items() if key != "type"}, place)


def _restore_tuple(hint: Any, value: Any, place: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise RecipeError(f"{place} must be a list, got {shorten(value)}")
    kinds = next(typing.get_args(option) for option in _options(hint) if typing.get_origin(option) is tuple)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise RecipeError(f"{place} must have {len(kinds)} values, got {len(value)}")
    return tuple(
        _restore(kind, item, f"{place}[{number}]") for number, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )


def _is_of(option: Any, value: Any) -> bool:
    if option is Any:
        return True
    if len(_options(option)) > 1:
        return any(_is_of(each, value) for each in _options(option))
    if typing.get_origin(option) is Literal:
        return any(value == choice and type(value) is type(choice) for choice in typing.get_args(option))
    if typing.get_origin(option) is dict:
        kinds = typing.get_args(option)
        return isinstance(value, dict) and all(all(map(_is_of, kinds, item)) for item in value.items())
    if typing.get_origin(option) is list:
        return isinstance(value, list) and all(_is_of(typing.get_args(option)[0], item) for item in value)
    if option is float:
        # JSON has whole numbers of any size, which are not all numbers of 64 bits.
        is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**308
        return isinstance(value, float) or is_whole
    if option is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, str) if option is Path else isinstance(option, type) and isinstance(value, option)


def _describe(option: Any) -> str:
    if typing.get_origin(option) is Literal:
        return f"one of {', '.join(map(repr, typing.get_args(option)))}"
    names = {float: "a number", int: "a whole number", str: "a text", bool: "true or false", Path: "a path"}
    return names.get(option, "null" if option is type(None) else str(option))


def _options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
