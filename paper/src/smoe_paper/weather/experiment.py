"""Medium-range weather as an experiment (paper section 3.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from smoe.command_line import UsageError
from smoe_paper.experiments.experiment import SPLITS, DataCommand, EvaluateOptions, Experiment, Notify, ShowOptions
from smoe_paper.experiments.stored_runs import RunStore
from smoe_paper.experiments.tables import PublishedResult, ResultTable, Scale, TableSet
from smoe_paper.weather.recipes import WEATHER_RECIPES, WeatherRecipe
from smoe_paper.weather.tables import WEATHER_TABLES, published_results

if TYPE_CHECKING:
    from torch import Tensor

    from smoe.training.task import Task
    from smoe_paper.experiments.experiment import ReportParts
    from smoe_paper.experiments.task import DryTask, OpenRun


@dataclass(frozen=True)
class WeatherEvaluateOptions(EvaluateOptions):
    """Scores a trained run beside persistence, climatologies and published results.

    Attributes:
        forecasts: File to write the forecasts to, .nc or .zarr.
    """

    forecasts: Path | None = None


@dataclass(frozen=True)
class WeatherShowOptions(ShowOptions):
    """Draws scores by epoch, forecasts beside the truth, and the routing on the globe, a picture for each gate.

    Attributes:
        init_times: Start times of the forecasts to draw, such as 2018-01-15T00; the default is one from the
            middle of the split.
        layers: Draw only the routing of layers with this text in their name.
    """

    init_times: tuple[str, ...] = ()
    layers: str = ""


@dataclass(frozen=True)
class TruthOptions:
    """Fields with which a file of forecasts is compared.

    Attributes:
        store: Folder that `smoe data prepare weather` made.
        targets: Channels to score, of those in the file.
        train_years: First and last year of the climatologies; the default is the years of the store's statistics.
    """

    store: Path | None = None
    targets: tuple[str, ...] = ("z_500", "t_850", "t2m", "tp")
    train_years: tuple[int, int] | None = None


@dataclass(frozen=True)
class WeatherScoreOptions:
    """Scores any forecasts in WeatherBench's layout (init_time, lead_time, lat, lon).

    smoe evaluate weather --file forecasts.nc --data.store stores/era5

    Attributes:
        file: Forecasts of any model to score, NetCDF or Zarr.
        skip_nan: Leave out forecasts with NaN instead of refusing the file.
        data: Fields with which the forecasts are compared.
    """

    file: Path
    skip_nan: bool = False
    data: TruthOptions = field(default_factory=TruthOptions)


class WeatherExperiment(Experiment):
    """Forecasts of some days on the globe, on WeatherBench or a simulated atmosphere."""

    name: ClassVar[str] = "weather"
    recipe_type = WeatherRecipe
    recipes = WEATHER_RECIPES
    tables: ClassVar[TableSet] = WEATHER_TABLES
    evaluate_options = WeatherEvaluateOptions
    show_options = WeatherShowOptions
    score_options = WeatherScoreOptions
    data_commands: ClassVar[Mapping[tuple[str, str], DataCommand]] = {
        ("check", "weather"): DataCommand(
            "smoe_paper.weather.commands:run_check", "WeatherBench, CMIP, WeatherBench-2"
        ),
        ("prepare", "weather"): DataCommand("smoe_paper.weather.commands:run_prepare", "--root DATA --output STORE"),
        ("fetch", "era5-sample"): DataCommand("smoe_paper.weather.commands:run_fetch", "a few fields of ERA5, 10 MB"),
    }

    def build(self, recipe: WeatherRecipe, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Task:
        """Opens the store and makes the network."""
        from smoe_paper.weather.model import build_task

        return build_task(recipe, splits, notify)

    def build_dry(self, recipe: WeatherRecipe) -> DryTask:
        """Makes the network, for the paper's channels if no store is named."""
        from smoe_paper.weather.model import build_dry_task

        return build_dry_task(recipe)

    def published(self, recipe_name: str) -> tuple[PublishedResult, ...]:
        """Returns the result that the paper prints for a recipe at three days."""
        return published_results(recipe_name, 72)

    def prepare_evaluation(self, options: WeatherEvaluateOptions) -> None:
        """Checks the output file before a year of forecasts is made."""
        if options.forecasts is not None:
            from smoe.gridded import check_output

            check_output(options.forecasts)

    def evaluate(self, run: OpenRun, options: WeatherEvaluateOptions) -> None:
        """Prints the scores beside baselines and published results, and writes the forecasts to a given file."""
        from smoe_paper.weather.report import print_run_scores

        print_run_scores(run, options.split, options.forecasts)

    def predict(self, run: OpenRun, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields forecasts and truths of a split in physical units."""
        import torch

        from smoe_paper.weather.scores import samples_of

        samples, _ = samples_of(run, split)
        for batch in super().predict(run, split):
            prediction, truth = (
                torch.stack(
                    [samples.store.to_physical(name, part[:, number]) for number, name in enumerate(samples.targets)],
                    dim=1,
                )
                for part in batch
            )
            yield prediction, truth

    def score(self, options: WeatherScoreOptions) -> None:
        """Scores a file of forecasts."""
        if options.data.store is None:
            raise UsageError("--file needs --data.store FOLDER, the weather store to compare the forecasts with")
        from smoe_paper.weather.report import print_file_scores

        asked = options.data
        print_file_scores(options.file, options.data.store, asked.targets, asked.train_years, options.skip_nan)

    def draw(self, run: OpenRun, options: WeatherShowOptions) -> list[Path]:
        """Draws scores, forecasts and routing."""
        import numpy as np

        from smoe_paper.weather.pictures import draw_run

        try:
            times = [np.datetime64(text, "h") for text in options.init_times]
        except ValueError as error:
            raise UsageError(f"--init-times: {error}; write a time as 2018-01-15T00") from None
        return draw_run(run, options.split, times, options.layers)

    def report_parts(self, run: OpenRun, split: str | None, notify: Notify = print) -> ReportParts:
        """Returns the globe, persistence and climatologies, and the published rows of the lead."""
        from smoe_paper.weather.pictures import report_parts

        return report_parts(run, split, notify)

    def store_references(
        self, tables: Iterable[ResultTable], scale: Scale, data: Path, store: RunStore, notify: Notify
    ) -> None:
        """Scores persistence and the climatologies."""
        from smoe_paper.weather.report import store_references

        store_references(tables, scale, data, store, notify)


WEATHER = WeatherExperiment()
