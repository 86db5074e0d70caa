"""Where a run keeps what it needs to go on: its settings, the model's state, and stretches of unfinished years."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run, beside the data that it writes."""

    path: Path

    @property
    def state(self) -> Path:
        """The model's state after the last complete stretch."""
        return self.path / "state.msgpack"

    @property
    def chunks(self) -> Path:
        """Stretches of years that are not complete yet."""
        return self.path / "chunks"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps a second run away for as long as this process lives."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"another simulation is writing to {self.path}: wait for it or stop it") from None
            yield

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Notes the settings of a new run; refuses to go on with others, which would change the climate half-way."""
        path = self.path / "settings.json"
        if not path.exists():
            temporary = path.with_suffix(".part")
            temporary.write_text(json.dumps(settings, indent=2) + "\n")
            temporary.replace(path)
            return
        before = json.loads(path.read_text())
        changed = [
            f"{key} was {before.get(key)}, is {value}" for key, value in settings.items() if before.get(key) != value
        ]
        if changed:
            raise ValueError(f"{path} belongs to another run ({'; '.join(changed)}): choose another --output")
