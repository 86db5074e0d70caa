"""Checkpoints: damaged by accident, every one is noticed; made by a stranger, none does harm."""

from __future__ import annotations

import functools
import hashlib
import io
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import torch

from faults.damage import damage
from faults.outcome import Kind, Outcome, TryCase, random_of, read_or_refuse
from smoe.training.checkpoints import _MARK, load_checkpoint, save_checkpoint

STATE = {
    "model": {"weight": torch.arange(24.0).reshape(2, 3, 4), "gate": torch.arange(5)},
    "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1e-3, "params": [0]}]},
    "epoch": 3,
    "history": [{"epoch": 1, "loss": 0.5}],
}

NUM_BITS = 19_048
"""Bits of a checkpoint of this state."""


def _damaged(folder: Path) -> TryCase:
    original = folder / "original.pt"
    save_checkpoint(original, STATE)
    content, path = original.read_bytes(), folder / "damaged.pt"

    def try_case(number: int) -> Outcome:
        what, damaged = damage(content, random_of("checkpoints", number))
        path.write_bytes(damaged)
        return read_or_refuse(what, lambda: load_checkpoint(path), lambda state: False)

    return try_case


def _every_bit(folder: Path) -> TryCase:
    original = folder / "original.pt"
    save_checkpoint(original, STATE)
    content, path = original.read_bytes(), folder / "damaged.pt"
    assert 8 * len(content) == NUM_BITS

    def try_case(number: int) -> Outcome:
        damaged = bytearray(content)
        damaged[number // 8] ^= 1 << number % 8
        path.write_bytes(damaged)
        return read_or_refuse(f"bit {number} flipped", lambda: load_checkpoint(path), lambda state: False)

    return try_case


class _Runs:
    """Unpickling an object of this class would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.path, "code was run")


def _hostile(folder: Path) -> TryCase:
    content = io.BytesIO()
    torch.save(STATE, content)
    path, proof = folder / "hostile.pt", folder / "code-was-run"

    def try_case(number: int) -> Outcome:
        chance = random_of("hostile checkpoints", number)
        what, hostile = _attack(content.getvalue(), chance, proof)
        # With the right checksum: a stranger can compute it.
        path.write_bytes(hostile + _MARK + hashlib.sha256(hostile).digest())
        outcome = read_or_refuse(what, lambda: load_checkpoint(path))
        if proof.exists():
            proof.unlink()
            return Outcome("silent", f"{what}: code was run")
        return outcome

    return try_case


def _attack(content: bytes, chance: random.Random, proof: Path) -> tuple[str, bytes]:
    way = chance.choice(("damage", "damage", "code", "folder", "claim", "compress", "nest", "bytes", "many"))
    if way == "damage":
        return damage(content, chance)
    if way == "code":
        return "an object that runs code", _edited(content, {"data.pkl": pickle.dumps(_Runs(proof), protocol=2)})
    if way == "nest":
        # A depth of a million takes torch three seconds, and so comes once in a while.
        depth = 1_000_000 if chance.random() < 0.02 else chance.choice((100, 1_000, 10_000, 100_000))
        return f"lists nested {depth} times", _edited(
            content, {"data.pkl": b"\x80\x02" + b"]" * depth + b"a" * depth + b"."}
        )
    if way == "bytes":
        listing = b"\x80\x02}X\x01\x00\x00\x00acbuiltins\nbytearray\n\x8a\x05\x00\xf2\x05\x2a\x01\x85Rs."
        return "a bytearray of 5 GB", _edited(content, {"data.pkl": listing})
    if way == "many":
        return "20 million dictionaries", _edited(content, {"data.pkl": b"\x80\x02](" + b"}" * 20_000_000 + b"e."})
    if way == "compress":
        return "compressed zeros", _compressed(content)
    # In the central directory: the size of an entry, or its attributes.
    changed = bytearray(content)
    places = [place for place in range(len(changed) - 4) if changed[place : place + 4] == b"PK\x01\x02"]
    place = chance.choice(places)
    if way == "folder":
        changed[place + 38] |= 0x10
        return "an entry that is a folder", bytes(changed)
    changed[place + 24 : place + 28] = chance.choice((2**31, 2**32 - 2, 10**6)).to_bytes(4, "little")
    return "an entry that claims another size", bytes(changed)


@functools.cache
def _compressed(content: bytes) -> bytes:
    return _edited(content, {"data/0": bytes(200_000_000)}, compression=zipfile.ZIP_DEFLATED)


def _edited(content: bytes, entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """The archive with entries replaced, found by the end of their names."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(result, "w", compression) as target:
        for info in source.infolist():
            name = next((name for name in entries if info.filename.endswith(f"/{name}")), None)
            target.writestr(info.filename, source.read(info) if name is None else entries[name])
    return result.getvalue()


KINDS = (
    Kind("checkpoints", "damaged checkpoints", 5000, _damaged),
    Kind("checkpoint-bits", "each bit of a small checkpoint flipped", NUM_BITS, _every_bit),
    Kind("hostile-checkpoints", "checkpoints of strangers, with a right checksum", 1000, _hostile),
)
