"""Pictures of one ENS-10 run: score by epoch, calibration, and maps of the improvement."""

from __future__ import annotations

from pathlib import Path

from smoe_paper.ens10.data.variables import TASKS
from smoe_paper.ens10.verification import store_of, verify
from smoe_paper.experiments.open_run import OpenRun

RAW = "raw ensemble"


def draw_run(run: OpenRun, split: str) -> list[Path]:
    """Writes the pictures into the run's folder and returns their paths.

    Args:
        run: Run, opened with the split.
        split: Split whose forecasts are drawn.
    """
    from smoe.views import draw_scores
    from smoe_paper.ens10.views import draw_calibration, draw_score_maps

    store, folder = store_of(run, split), run.directory.pictures
    task = next(task for name, task in TASKS.items() if name == store.task)
    units = task.target_variable.physics.units
    raw, corrected = verify(run, split)
    history = [record for record in run.directory.read_history() if record.get("validation/crps") is not None]
    pictures: list[Path] = []
    if history:
        pictures.append(folder / "scores.png")
        draw_scores(history, {"validation/crps": f"CRPS on validation, in {units}"}, pictures[-1])
    title = f"{run.name}: {store.task} from {store.num_members} members, {split} split"
    pictures.append(folder / "calibration.png")
    draw_calibration(
        {RAW: raw.parts, run.name: corrected.parts},
        {RAW: (raw.spread, raw.error), run.name: (corrected.spread, corrected.error)},
        pictures[-1],
        title=title,
        units=units,
    )
    pictures.append(folder / "crps.png")
    draw_score_maps(
        raw.crps,
        corrected.crps,
        store.grid.latitude,
        store.grid.longitude,
        pictures[-1],
        names=(RAW, run.name),
        score=f"CRPS, in {units}",
        title=title,
    )
    return pictures
