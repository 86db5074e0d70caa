from __future__ import annotations

from pathlib import Path

from smoe.gridded.store_folder import only_process


def test_what_a_killed_process_left_half_written_is_removed(tmp_path: Path) -> None:
    leftover = tmp_path / ".preparation.json.123.0a1b2c3d.tmp"
    leftover.write_text("half")
    kept = [tmp_path / "preparation.json", tmp_path / ".notes"]
    for path in kept:
        path.write_text("whole")
    with only_process(tmp_path, {"preparation.json"}):
        assert not leftover.exists()
        assert all(path.exists() for path in kept)
