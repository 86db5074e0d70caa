"""Text as HTML: everything that comes from outside is escaped here."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class Markup(str):
    """HTML that is already escaped."""

    __slots__ = ()


def escape(text: object) -> Markup:
    """Returns a text as HTML; HTML is returned as it is."""
    return text if isinstance(text, Markup) else Markup(html.escape(str(text), quote=True))


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """Returns an element.

    Args:
        name: Name of the element.
        *children: Content; text is escaped.
        **attributes: Attributes; `class_` is `class`, other underscores are hyphens. None and False leave one out.
    """
    words = [name]
    for key, value in attributes.items():
        if value is not None and value is not False:
            known = key.removesuffix("_").replace("_", "-")
            words.append(known if value is True else f'{known}="{escape(value)}"')
    return Markup(f"<{' '.join(words)}>{''.join(map(escape, children))}</{name}>")


def join(parts: Iterable[Markup]) -> Markup:
    """Returns elements one after the other."""
    return Markup("\n".join(parts))


def script_json(content: Mapping[str, Any]) -> Markup:
    """Returns plain values as JSON that cannot end the element that it stands in.

    Raises:
        ValueError: If a number is not finite.
    """
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def facts_table(caption: str, facts: Mapping[str, object]) -> Markup:
    """Returns a table of names and values."""
    rows = (tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in facts.items())
    table = tag("table", tag("caption", caption), tag("tbody", *rows), class_="facts")
    return tag("div", table, class_="scroll")


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Returns nested values by their names with dots, as JSON has them."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            is_text = isinstance(value, str)
            flat[f"{prefix}{key}"] = value if is_text else json.dumps(value, default=str)
    return flat


def head_row(names: Sequence[str], text_names: Sequence[str] = ()) -> Markup:
    """Returns the head of a table.

    Args:
        names: Names of the column of row heads and of those that hold numbers.
        text_names: Names of further columns, which hold text.
    """
    first, *numbers = names
    texts = [tag("th", name, scope="col", class_="text") for name in text_names]
    cells = [tag("th", first, scope="col", class_="text"), *(tag("th", name, scope="col") for name in numbers), *texts]
    return tag("thead", tag("tr", *cells))
