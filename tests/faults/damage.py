"""Damages content as disks, copies and strangers do."""

from __future__ import annotations

import copy
import json
import random
from typing import Any


def damage(content: bytes, chance: random.Random) -> tuple[str, bytes]:
    """Returns what was done, and the damaged content, which differs from the original."""
    while True:
        what, damaged = chance.choice(_WAYS)(bytearray(content), chance)
        if bytes(damaged) != content:
            return what, bytes(damaged)


def truncate(content: bytes | bytearray, chance: random.Random) -> tuple[str, bytes]:
    """Cuts off the end."""
    length = chance.randrange(len(content))
    return f"truncated to {length} of {len(content)} bytes", bytes(content[:length])


def _flip(content: bytearray, chance: random.Random) -> tuple[str, bytearray]:
    place, bit = chance.randrange(len(content)), chance.randrange(8)
    content[place] ^= 1 << bit
    return f"bit {bit} of byte {place} flipped", content


def _overwrite(content: bytearray, chance: random.Random) -> tuple[str, bytearray]:
    length = min(len(content), chance.choice((1, 2, 4, 8, 64, 512)))
    place = chance.randrange(len(content) - length + 1)
    value = chance.choice((b"\0", b"\xff", b"\x7f", None))
    content[place : place + length] = chance.randbytes(length) if value is None else value * length
    return f"{length} bytes from {place} on overwritten by {value!r}", content


def _remove(content: bytearray, chance: random.Random) -> tuple[str, bytearray]:
    place, length = chance.randrange(len(content)), chance.randrange(1, 64)
    del content[place : place + length]
    return f"{length} bytes from {place} on removed", content


def _repeat(content: bytearray, chance: random.Random) -> tuple[str, bytearray]:
    place, length = chance.randrange(len(content)), chance.randrange(1, 64)
    content[place:place] = content[place : place + length]
    return f"{length} bytes from {place} on repeated", content


def _move(content: bytearray, chance: random.Random) -> tuple[str, bytearray]:
    source, target = chance.randrange(len(content)), chance.randrange(len(content))
    length = min(chance.randrange(1, 512), len(content) - max(source, target))
    content[target : target + length] = content[source : source + length]
    return f"{length} bytes from {source} on copied to {target}", content


_WAYS = (_flip, _flip, _overwrite, _remove, _repeat, _move, truncate)

_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**30, -0.5, 1e308, float("nan"), float("inf"), "", "x", "../../etc/passwd",
    "/dev/zero", "\0", "é\n", [], [1, "x"], [[[[]]]], {}, {"type": "x"}, {"a": {"b": None}}, "9" * 5000,
)  # fmt: skip


def mutate(content: Any, chance: random.Random) -> tuple[str, Any]:
    """Returns what was done, and a copy of JSON content with a value replaced, removed, renamed or added."""
    content = copy.deepcopy(content)
    container, key = chance.choice(list(_places(content)))
    way = chance.choice(("replace", "replace", "replace", "remove", "rename", "exchange"))
    if way == "replace":
        container[key] = chance.choice(_VALUES)
        return f"{key!r} replaced by {str(container[key])[:50]!r}", content
    if way == "remove":
        del container[key]
        return f"{key!r} removed", content
    if way == "rename" and isinstance(container, dict):
        container[f"{key}x"] = container.pop(key)
        return f"{key!r} renamed", content
    other, place = chance.choice(list(_places(content)))
    container[key] = copy.deepcopy(other[place])
    return f"{key!r} replaced by {place!r}", content


def mutate_text(text: str, chance: random.Random) -> tuple[str, bytes]:
    """Returns what was done, and damaged JSON: another value in it, or another text."""
    if chance.random() < 0.75:
        what, content = mutate(json.loads(text), chance)
        return what, json.dumps(content).encode()
    return damage(text.encode(), chance)


def _places(content: Any):
    keys = content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    for key in keys:
        yield content, key
        yield from _places(content[key])
