"""Checks with the real model that a run which is stopped and restored gives the same fields as one that is not.

Run as `.venv-simulation/bin/python -m simulation.check_resume`; it takes some minutes, as it builds the model twice.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

import numpy as np

from simulation.atmosphere import Atmosphere, AtmosphereSettings
from simulation.years import CHUNK_DAYS


def main() -> None:
    """Runs a stretch, saves, runs another; restores in a new process, runs it again, and compares."""
    if len(sys.argv) == 2:
        _go_on(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        atmosphere = Atmosphere(AtmosphereSettings())
        atmosphere.advance(CHUNK_DAYS)
        atmosphere.save(Path(folder) / "state.msgpack")
        frames = atmosphere.advance(CHUNK_DAYS)
        subprocess.run([sys.executable, "-m", "simulation.check_resume", folder], check=True)
        different = []
        with np.load(Path(folder) / "frames.npz") as again:
            for field in fields(frames):
                values, others = getattr(frames, field.name), again[field.name]
                if not np.array_equal(values, others):
                    different.append(f"{field.name} by up to {np.abs(values - others).max()}")
    if different:
        sys.exit(f"a restored run differs: {'; '.join(different)}")
    print(f"a restored run gives the same {len(frames.times)} frames, bit for bit")


def _go_on(folder: Path) -> None:
    atmosphere = Atmosphere(AtmosphereSettings())
    atmosphere.restore(folder / "state.msgpack")
    frames = atmosphere.advance(CHUNK_DAYS)
    np.savez(folder / "frames.npz", **{field.name: getattr(frames, field.name) for field in fields(frames)})


if __name__ == "__main__":
    main()
