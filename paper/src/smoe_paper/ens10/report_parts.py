"""What a report of an ENS-10 run shows beside its scores: the globe, and the raw ensemble that it corrects."""

from __future__ import annotations

from dataclasses import asdict, replace

from smoe._integrity import checksum
from smoe.reports.parts import ErrorMap, Places
from smoe_paper.ens10.data.variables import TASKS
from smoe_paper.ens10.pictures import RAW
from smoe_paper.ens10.published import MEMBERS, paper_results
from smoe_paper.ens10.raw import score_raw_ensemble
from smoe_paper.ens10.recipes import ENSEMBLE_RECIPES, EnsembleRecipe
from smoe_paper.ens10.setting import open_store
from smoe_paper.ens10.verification import verify
from smoe_paper.experiments.experiment import Notify
from smoe_paper.experiments.open_run import OpenRun
from smoe_paper.experiments.report_parts import ReportParts


def report_parts(run: OpenRun, split: str | None, notify: Notify) -> ReportParts:
    """Returns the globe of the store, and the CRPS of the raw ensemble and of the run at each pixel.

    Args:
        run: Run, opened with the split.
        split: Split that is scored; None for a report without forecasts.
        notify: Receives messages about what is being measured.
    """
    assert isinstance(run.recipe, EnsembleRecipe)
    data = run.recipe.data
    store = open_store(data)
    units = next(task for name, task in TASKS.items() if name == store.task).target_variable.physics.units
    parts = ReportParts(
        places=Places.globe(store.grid.latitude, store.grid.longitude),
        targets=((store.task, units),),
        data={"store": store.path.name, "checksum of the store": checksum(asdict(store.metadata))},
    )
    if split is None:
        return parts
    notify(f"{run.name}: scoring the raw ensemble")
    years = {"validation": data.validation_years, "test": data.test_years}[split]
    raw, corrected = verify(run, split)
    names = ENSEMBLE_RECIPES if store.num_members in MEMBERS else ()
    return replace(
        parts,
        baselines={RAW: score_raw_ensemble(store, years)},
        published={name: paper_results(name, store.task, store.num_members) for name in names},
        error_maps=(ErrorMap(f"{store.task}, CRPS", units, corrected.crps, raw.crps, RAW),),
        remarks=(
            f"{store.task} from {store.num_members} members, {years[0]} to {years[1]}. The paper's rows are of ENS-10, "
            "2016-2017: they can be compared with a run on these data only.",
        ),
    )
