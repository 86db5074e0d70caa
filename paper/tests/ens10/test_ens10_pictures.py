"""Evaluating and drawing a run that corrects ensembles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scoringrules
from matplotlib.image import imread
from scipy.stats import norm

from ens10_files import write_ens10
from memory_ensemble import tiny_recipe
from memory_source import Silent
from smoe.cli.main import main
from smoe_paper.ens10.commands import Preparation
from smoe_paper.ens10.prepare import prepare
from smoe_paper.ens10.recipes import EnsembleData
from smoe_paper.ens10.scores import NUM_PARTS, verify
from smoe_paper.ens10.source import open_ens10
from smoe_paper.ens10.store import EnsembleStore
from smoe_paper.ens10.variables import TASKS
from smoe_paper.experiments.runs import open_run, train


def quietly(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    root = write_ens10(folder / "files", "t850")
    source = open_ens10(root, TASKS["t850"], 10)
    prepare(source, root, folder / "store", Preparation(train_years=(1998, 1998)), Silent())
    data = EnsembleData(folder / "store", (1998, 1998), (1999, 1999), (2000, 2000))
    train("ens10/unet", tiny_recipe("ens10/unet", data=data), folder / "run", notify=quietly)
    return folder / "run"


@pytest.fixture(autouse=True)
def _beside_the_store(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent)


def test_the_raw_ensemble_is_verified_as_its_normal_distribution(run: Path) -> None:
    opened = open_run(run, splits=("test",), notify=quietly)
    raw, corrected = verify(opened, "test")
    store = EnsembleStore.open(run.parent / "store")
    rows = [row for row, date in enumerate(store.valid_dates) if str(date).startswith("2000")]
    truth, mean, spread = (np.asarray(fields)[rows] for fields in (store.truth, store.target_mean, store.target_std))
    error = truth - mean
    np.testing.assert_allclose(raw.crps, np.mean(scoringrules.crps_normal(error, 0.0, spread), axis=0), rtol=1e-4)
    expected, _ = np.histogram(norm.cdf(error / spread), bins=np.linspace(0, 1, NUM_PARTS + 1))
    np.testing.assert_allclose(raw.parts, expected / expected.sum(), atol=2.0 / expected.sum())
    assert corrected.crps.mean() == pytest.approx(opened.evaluate("test")["crps"], rel=1e-5)
    # Classes of the raw spread ascend, and together they are all pixels.
    assert np.all(np.diff(raw.spread) > 0)
    assert len(raw.spread) == len(corrected.error) == 10


def test_show_draws_the_pictures(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run)]) == 0
    pictures = [Path(line) for line in capsys.readouterr().out.split()]
    assert [picture.name for picture in pictures] == ["scores.png", "calibration.png", "crps.png"]
    for picture in pictures:
        assert imread(picture).std() > 0.05, picture
    assert main(["show", str(run), "--layers", "encoder"]) == 2
    assert "Unrecognized options: --layers" in capsys.readouterr().err


def test_evaluate_stands_beside_the_raw_ensemble_and_the_paper(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["evaluate", str(run)]) == 0
    text = capsys.readouterr().out
    scores = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert "t850 from 10 members" in text
    # The run's, the raw ensemble's, and the paper's three.
    assert len(scores["crps"]) == 5
    assert scores["crps"][2:] == ["0.706", "0.67", "0.59"]
    assert scores["efi_dates"][:2] == ["5", "5"]
    # Only the members have ranks.
    assert len(scores["rank_10"]) == 1
