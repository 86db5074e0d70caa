from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import smoe
from gridded_files import regional
from smoe.training.progress import Reporter, TrackedReporter


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_records_reach_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    small = regional(20, 4, 6)
    model = smoe.GridRegressor(
        net="layer", filters=2, max_epochs=3, compare="no", device="cpu", progress=False, log_with="tensorboard",
        lead="1D",
    )  # fmt: skip
    model.fit(small, small, run_dir=tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run")).Reload()
    logged = {event.step: event.value for event in events.Scalars("validation/loss")}
    expected = {r["epoch"]: r["validation/loss"] for r in model.fitted.records["model"] if "validation/loss" in r}
    assert len(logged) == 3 and logged == pytest.approx(expected)


def test_a_tracker_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="log_with='tensorboard' needs the package tensorboard: pip install tensorbo"):
        TrackedReporter(Reporter(), "tensorboard", tmp_path)


def test_the_options_import_nothing_heavy() -> None:
    program = (
        "import sys, smoe.cli.fit\n"
        "heavy = {'torch', 'xarray', 'accelerate', 'tensorboard', 'dask', 'zarr', 'safetensors'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
