from __future__ import annotations

from pathlib import Path

import pytest

from smoe.errors import DataError
from smoe_paper.atmosphere.stores import only_process


def test_what_a_killed_process_left_half_written_is_removed(tmp_path: Path) -> None:
    leftover = tmp_path / ".preparation.json.123.0a1b2c3d.tmp"
    leftover.write_text("half")
    kept = [tmp_path / "preparation.json", tmp_path / ".notes"]
    for path in kept:
        path.write_text("whole")
    with only_process(tmp_path, {"preparation.json"}):
        assert not leftover.exists()
        assert all(path.exists() for path in kept)


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "store" / "lock").symlink_to(tmp_path / "precious")
    with (
        pytest.raises(DataError, match="lock cannot be written: it is a link"),
        only_process(tmp_path / "store", set()),
    ):
        pass
    assert (tmp_path / "precious").read_text() == "kept"
