"""A location-aware regression model for data on a grid: xarray in, xarray out."""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from smoe._files import temporary_folder
from smoe._notebook import html_text
from smoe.errors import DataError, OptionError, suggest
from smoe.gridded import (
    Data,
    OpenOptions,
    Pairs,
    Period,
    TimeLabels,
    import_xarray,
    parse_lead,
    with_provenance,
    write_cf,
)
from smoe.regression._fitted import FOLDS, Fitted, OutputLayout, pixel_weights
from smoe.regression._ladder import fit_trees, num_channels
from smoe.regression._ladder_fit import LadderFit
from smoe.regression._nets import (
    NetShape,
    Regression,
    count_shared_parameters,
    make_net,
    make_plain_net,
    mesh_of_targets,
    wrap_own_net,
)
from smoe.regression._options import SIMPLE, NetName, OwnTransform, RegressorOptions
from smoe.regression._prediction import (
    LEAD_ATTRIBUTES,
    lead_hours,
    open_inputs,
    predict_lazily,
    predict_positions,
    routing_map,
)
from smoe.regression._preparation import Prepared, join_leads, open_sources, pair_sources, prepare
from smoe.regression._saved import load_model, save_model
from smoe.regression._scores import MEAN_OF_ROWS, MODEL, TREES, ErrorSums, ScoreTable, make_table, score_samples
from smoe.regression._training import BaseFields, Folded, GridObjective, NetSamples, judge, net_fields, train_net
from smoe.training.progress import BarReporter, ProgressBar, Reporter, TrackedReporter
from smoe.training.run_directory import RunDirectory

if TYPE_CHECKING:
    import xarray as xr

# Values of all training inputs up to which a plain net is fitted beside the model by default.
_SMALL_DATA = 50_000_000
# The same, up to which plain nets of folds are fitted: the fewer the data, the more a net depends on its seed.
_FEW_DATA = 3_000_000


class GridRegressor:
    """Predicts gridded targets from gridded inputs by a net of SMoE layers, which learn what to do where.

    Args:
        net: `layer`, `resnet` or `unet`, one of the simple models, or a module of your own that turns `(B, C, H, W)`
            into `(B, K, H, W)`; the nodes of a mesh are one row.
        progress: Show a progress bar and a line for each epoch.
        **options: Further fields of `RegressorOptions`, such as `lead="3D"`. The objective may be a function of
            prediction and target, `(B, K, H, W)` each in standard deviations of what is learned, which gives the error
            of each pixel: nets are trained by it, all else is judged by the mean squared error.

    Example:
        >>> model = smoe.GridRegressor(lead="3D")
        >>> model.fit(x, y, validation=slice("2016", "2016"))
        >>> predicted = model.predict(x_new)
    """

    def __init__(self, net: NetName | nn.Module = "resnet", *, progress: bool = True, **options: Any) -> None:
        _check_names(options)
        self._own_objective: Callable[[Tensor, Tensor], Tensor] | None = None
        if callable(options.get("objective")):
            self._own_objective = options.pop("objective")
        if isinstance(net, type):
            raise OptionError(f"net must be a name or a module, got the class {net.__name__}: give {net.__name__}(...)")
        if options.get("lead") is not None:
            options["lead"] = join_leads(options["lead"])
        if isinstance(options.get("transform"), (tuple, list)):
            options["transform"] = OwnTransform(*options["transform"])
        self._own_net: nn.Module | None = None
        if isinstance(net, nn.Module):
            self._own_net = net
            self.options = RegressorOptions(**options)
        else:
            self.options = RegressorOptions(net=net, **options)
        self._shows_progress = progress
        self._fitted: Fitted | None = None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All options by name, as scikit-learn asks for them: `sklearn.base.clone` makes a model that is not fitted."""
        del deep
        found = {each.name: getattr(self.options, each.name) for each in fields(RegressorOptions)}
        own = {} if self._own_objective is None else {"objective": self._own_objective}
        return found | own | {"net": self._own_net or self.options.net, "progress": self._shows_progress}

    def set_params(self, **options: Any) -> GridRegressor:
        """Changes options of a later `fit`, and returns the model itself."""
        _check_names({name: None for name in options if name not in ("net", "progress")})
        fitted = self._fitted
        self.__init__(**{**self.get_params(), **options})
        self._fitted = fitted
        return self

    def __sklearn_clone__(self) -> GridRegressor:
        params = self.get_params()
        return type(self)(**{**params, "net": copy.deepcopy(params["net"])})

    @property
    def is_fitted(self) -> bool:
        """Whether `fit` or `load` gave the model its weights."""
        return self._fitted is not None

    @property
    def fitted(self) -> Fitted:
        """All that was learned.

        Raises:
            DataError: Before `fit`.
        """
        if self._fitted is None:
            raise DataError("the model is not fitted yet: call fit, or load one")
        return self._fitted

    def _on_device(self) -> Fitted:
        """What was learned, its nets where they predict the fastest."""
        fitted = self.fitted
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        for net in fitted.nets.values() if device is not None and fitted.options.device == "auto" else ():
            net.to(device)
        return fitted

    @property
    def net(self) -> Regression:
        """The net that predicts, in evaluation mode; normalised inputs to normalised outputs."""
        return self.fitted.predictor

    def fit(
        self,
        x: Data,
        y: Data,
        *,
        train: Any = None,
        validation: Any = None,
        test: Any = None,
        input_variables: Sequence[str] | None = None,
        target_variables: Sequence[str] | None = None,
        open_options: OpenOptions | None = None,
        run_dir: str | Path | None = None,
        resume: bool = False,
        warm_start: bool = False,
        notify: Callable[[str], None] | None = None,
    ) -> GridRegressor:
        """Learns to predict `y` from `x`.

        Args:
            x: Inputs: an xarray Dataset or DataArray, a path, or a list of these.
            y: Targets.
            train: Period to learn from, such as `slice("1979", "2015")` or `"1979:2015"`; all that the others leave.
            validation: Period that decides when to stop; the last part of the times if None.
            test: Period to keep out, which `score` scores.
            input_variables: Variables of `x` to use; all on the grid if None.
            target_variables: Variables of `y` to predict; all if None.
            open_options: Arguments of `xarray.open_dataset` for files, such as `{"group": "forecast"}`, or
                `{"filter_by_keys": {"typeOfLevel": "surface"}}` for GRIB.
            run_dir: Folder of the record, the checkpoints and of data that do not fit into memory; a temporary one if
                None.
            resume: Continue the training in `run_dir`.
            warm_start: Begin with the weights of the net that this model has, as for more years of the same data.
            notify: Called with lines that are worth reading, such as the number of samples; printed with the progress
                bar if None. What looks wrong is a `UserWarning`.

        Returns:
            The model itself.

        Raises:
            DataError: If the data cannot be used, with the reason.
        """
        reporter = BarReporter("loss", is_quiet=not self._shows_progress)
        notify = notify or reporter.notify
        folder = None if run_dir is None else Path(run_dir)
        directory = None if folder is None else RunDirectory(folder / "training")
        with ExitStack() as stack:
            if folder is None or directory is None:
                cache = stack.enter_context(temporary_folder("smoe-fields-"))
            else:
                # From the reading on: a second fit would write the same fields.
                cache = folder / "fields"
                stack.enter_context(directory.lock())
            with (
                _nothing_left_of_bad_data(folder),
                ProgressBar(is_quiet=not self._shows_progress) as bar,
            ):
                prepared = prepare(
                    x,
                    y,
                    self.options,
                    {"train": train, "validation": validation, "test": test},
                    input_variables=input_variables,
                    target_variables=target_variables,
                    open_options=open_options,
                    cache=cache,
                    notify=notify,
                    progress=lambda done, total: bar.show(done, total, "reading times"),
                )
            for text in prepared.warnings:
                warnings.warn(text, stacklevel=2)
            is_array = isinstance(y, import_xarray().DataArray)
            self._fitted = self._train(prepared, is_array, directory, resume, reporter, notify, warm_start)
        if self._fitted.weakness is not None:
            warnings.warn(self._fitted.weakness, stacklevel=2)
        return self

    def _train(
        self, prepared: Prepared, is_array: bool, directory: RunDirectory | None, resume: bool, reporter: BarReporter,
        notify: Callable[[str], None], warm_start: bool = False,
    ) -> Fitted:  # fmt: skip
        options = self.options
        is_own = self._own_net is not None
        train, validation = prepared.splits["train"], prepared.splits["validation"]
        weights = pixel_weights(prepared.targets.grid, options)
        dynamic = [channel.variable for channel in prepared.inputs.channels if not channel.is_static]
        uniform = [number for number, name in enumerate(dynamic) if name in prepared.inputs.series]
        mesh = mesh_of_targets(prepared.targets.dataset, prepared.targets.grid, self._own_net)
        nodes = None if mesh is None else mesh.coordinates.numpy()
        ladders = LadderFit(train, validation, prepared.targets.grid, weights, uniform, nodes).run()
        base = SIMPLE.get(options.net) or ladders.train.best
        if base not in ladders.train.rungs:
            raise DataError(f"net={options.net!r} needs an input that each target continues: choose another one")
        shape = NetShape(
            in_channels=num_channels(
                ladders.train.design.anomalies.basis, len(prepared.inputs.channels), len(prepared.targets.channels),
                has_lead=prepared.lead_scale is not None, is_own=is_own,
            ),
            out_channels=len(prepared.targets.channels) * options.outputs_per_target,
            grid=prepared.targets.grid.shape,
            closes_circle=prepared.targets.grid.closes_circle,
            num_targets=len(prepared.targets.channels),
        )  # fmt: skip
        torch.manual_seed(options.seed)
        net = wrap_own_net(self._own_net, shape) if self._own_net is not None else make_net(shape, options, mesh)
        if warm_start:
            if self._fitted is None or self._fitted.shape != shape:
                raise DataError(
                    "warm_start needs a model that was fitted to the same variables and grid: fit without it"
                )
            net.load_state_dict(self._fitted.net.state_dict())
        objective = GridObjective(options, weights, self._own_objective)
        num_values = len(train) * shape.in_channels * shape.grid[0] * shape.grid[1]
        compares = options.compare == "yes" or (options.compare == "auto" and num_values <= _SMALL_DATA)
        compares &= not options.quick or options.compare == "yes"
        corrected = BaseFields.of(ladders, prepared, base, options)
        recipe = {"options": asdict(options), "inputs": [c.name for c in prepared.inputs.channels]}
        records: dict[str, list[dict[str, Any]]] = {}
        nets: dict[str, Regression] = {"net": net}
        folded: Folded | None = None

        def learn(which: str, seed: int, to: Reporter) -> None:
            corrected.begin(nets[which], options)
            parts = (train, corrected.train), (validation, corrected.validation)
            if folded is not None and which in FOLDS:
                parts = ((folded.samples.take(rows), folded.base[rows]) for rows in folded.rows(which))
            splits = {
                name: NetSamples(samples, ladders.train, values, corrected.scale, is_own=is_own)
                for name, (samples, values) in zip(("train", "validation"), parts, strict=True)
            }
            place = directory
            if directory is not None and which != "net":
                place = RunDirectory(f"{directory.path}-{which}")
            records["model" if which == "net" else which] = train_net(
                nets[which], splits, objective, replace(options, seed=seed), reporter=to, recipe=recipe,
                directory=place, resume=resume, compares_routing=not compares,
            )  # fmt: skip

        corrected.begin(net, options)
        notify(ladders.train.describe())
        with reporter:
            logged = self._tracked(reporter, None if directory is None else directory.path.parent)
            if options.net not in SIMPLE or is_own:
                learn("net", options.seed, logged)
                if compares:
                    notify("fitting plain nets of the same size, to compare with")
                if compares and num_values <= _FEW_DATA:
                    folded = Folded.of(train, validation, corrected, ladders.block)
                for number, which in enumerate(("plain", *(FOLDS if folded is not None else ())) if compares else ()):
                    seed = options.seed + number
                    torch.manual_seed(seed)
                    nets[which] = make_plain_net(
                        "resnet" if is_own else options.net, shape, num_blocks=options.num_blocks,
                        num_parameters=count_shared_parameters(net), mesh=mesh,
                    )  # fmt: skip
                    learn(which, seed, reporter)
                    if folded is not None and which in FOLDS:
                        unseen = folded.rows(which)[1]
                        folded.values[which] = net_fields(
                            nets[which], ladders.train, folded.samples.take(unseen), folded.base[unseen], options,
                            is_own=is_own,
                        )  # fmt: skip
        is_refitted = options.refit == "yes" or (options.refit == "auto" and "test" in prepared.splits)
        times = np.concatenate([train.pairs.starts, train.pairs.valid])
        judged = judge(nets, corrected, validation, ladders.train, weights, options, is_own=is_own, folded=folded)
        fitted = Fitted(
            options=options,
            ladder=ladders.train,
            base=base,
            net=net,
            plain=nets.get("plain"),
            folds=tuple(nets[name] for name in FOLDS if name in nets),
            shares=judged.shares,
            spread=replace(corrected.spread, widen=judged.widen),
            validation=judged.validation,
            verdict=judged.verdict,
            shape=shape,
            has_own_net=is_own,
            input_channels=prepared.inputs.channels,
            target_channels=prepared.targets.channels,
            grid=prepared.targets.grid,
            mesh=mesh,
            layout=OutputLayout.of(prepared.targets, is_array=is_array),
            static=train.inputs.static,
            input_mask=train.inputs.always_missing,
            lead_scale=prepared.lead_scale,
            calendar=train.pairs.calendar,
            periods={name: str(period) for name, period in prepared.periods.items()},
            bounds={name: (period.start, period.stop) for name, period in prepared.periods.items()},
            records=records,
            trained=(int(times.min()), int(times.max()) + 1),
            samples=prepared.samples,
            notes=(*prepared.notes, *prepared.warnings),
        )
        notify(fitted.verdict)
        if compares:
            trees = fit_trees(train, validation, ladders.neighbours, weights, options.seed)
            fitted = replace(fitted, trees=trees)
        return replace(fitted, ladder=ladders.all) if is_refitted else fitted

    def predict(self, x: Data, *, open_options: OpenOptions | None = None, lazy: bool = False) -> Any:
        """Predicts from new inputs.

        Args:
            x: Inputs with the variables, units and grid of the training; further variables are not used.
            open_options: As for `fit`.
            lazy: Return dask arrays, which are computed when they are asked for, a block of times at once.

        Returns:
            Predictions with the names, units, coordinates and attributes of the targets; a DataArray if `fit` was given
            one and nothing was added to it, else a Dataset.

        Raises:
            DataError: If variables, units or the grid differ, with the difference.
        """
        fitted = self._on_device()
        source = open_inputs(fitted, x, open_options)
        every = np.arange(source.num_positions)
        dataset = predict_lazily(fitted, source) if lazy else predict_positions(fitted, source, every)
        dataset = with_provenance(dataset, f"predicted by smoe.GridRegressor ({fitted.describe()})")
        if fitted.layout.is_array and len(dataset.data_vars) == 1:
            return dataset[next(iter(dataset.data_vars))]
        return dataset

    def rollout(self, x: Data, steps: int) -> xr.Dataset:
        """Predicts from predictions: the state after 1, 2, ... leads, in a dimension `lead_time`.

        Args:
            x: States to begin with; all inputs that depend on time must be targets too.
            steps: Number of leads.

        Raises:
            DataError: If the model predicts not all of its inputs, or has no lead.
        """
        xr = import_xarray()
        fitted = self.fitted
        if steps < 1:
            raise OptionError(f"steps must be at least 1, got {steps}")
        missing = set(fitted.dynamic_variables) - {channel.variable for channel in fitted.target_channels}
        lead = parse_lead(fitted.options.last_lead)
        if missing or not (lead.seconds or lead.months) or len(fitted.options.leads) > 1:
            what = f"it does not predict {', '.join(sorted(missing))}" if missing else "it has no lead"
            what = "it has several leads" if len(fitted.options.leads) > 1 else what
            raise DataError(f"the model cannot go on from its own predictions: {what}")
        source = open_inputs(fitted, x)
        if source.labels is None or source.lead_times is not None or fitted.options.outputs_per_target > 1:
            raise DataError("predictions of predictions need states with a time, and a model of single values")
        starts = source.labels.coordinate(source.labels.seconds)
        state, found = x, []
        for _ in range(steps):
            state = self.predict(state)
            state = state.to_dataset() if isinstance(state, xr.DataArray) else state
            time = fitted.layout.time[0]
            valid = ((time,), state[time].values, {"standard_name": "time"})
            found.append(state.assign_coords({time: starts, "valid_time": valid}))
        names = [variable for variable, *_ in fitted.layout.variables]
        whole = xr.concat(
            found, dim="lead_time", data_vars=names, coords=["valid_time"], compat="override", join="override"
        )  # fmt: skip
        hours = lead_hours(lead) * np.arange(1, steps + 1)
        return whole.assign_coords(lead_time=("lead_time", hours, LEAD_ATTRIBUTES))

    def cross_validate(self, x: Data, y: Data, folds: int = 5, **fit: Any) -> ScoreTable:
        """Scores every time by a model that was fitted without the block of times around it.

        Args:
            x: Inputs.
            y: Targets.
            folds: Number of blocks, of whole years where there are as many.
            **fit: Further arguments of `fit`, such as `input_variables`.
        """
        names = [fit.get(name) for name in ("input_variables", "target_variables", "open_options")]
        inputs, targets = open_sources(x, y, self.options, *names)
        pairs = pair_sources(inputs, targets, self.options)
        tables = []
        for period in _blocks(pairs, folds):
            one = type(self)(**self.get_params())
            one.fit(x, y, test=period, **fit)
            tables.append(one.score(x, y, period, open_options=fit.get("open_options")))
        # The name of the climatology tells its harmonics, which may differ.
        common = [name for name in tables[0].squared if all(name in each.squared for each in tables)]
        sums = {name: ErrorSums([each.squared[name] for each in tables], [each.absolute[name] for each in tables])
                for name in common}  # fmt: skip
        simple = [name for name in common if name not in (MODEL, TREES, MEAN_OF_ROWS) and "net" not in name]
        whole = Period(int(pairs.starts.min()), int(pairs.valid.max()) + 1, pairs.calendar)
        return make_table(
            sums, tables[0].targets, tables[0].units, None, period=f"{len(tables)} blocks of {whole}", simple=simple
        )

    def score(
        self, x: Data, y: Data, period: Any = None, *, open_options: OpenOptions | None = None,
        regions: Mapping[str, Any] | None = None,
    ) -> ScoreTable:  # fmt: skip
        """Scores predictions beside simple ones: persistence, climatology, the map of mean errors and a plain net.

        Args:
            x: Inputs.
            y: Targets.
            period: Only samples in this period, such as `"2017:2018"`. None: those in the test period of the fit, or
                all if there are none; the table says what was scored, and whether the fit has seen it.
            open_options: As for `fit`.
            regions: Parts of the area for `table.by("region")`, by their names: boxes (south, north, west, east) in
                degrees, or masks in the order of the targets.

        Returns:
            A table that `print` shows; `table.value("model", "t2m")` is one of its numbers.
        """
        return score_samples(self._on_device(), x, y, period, open_options, regions)

    def routing_map(self, gate: str | int = 0, slot: int | None = 0) -> xr.DataArray:
        """Which expert serves which pixel.

        Args:
            gate: Name or number of a gate; those of several layers may be shared.
            slot: Which of the experts that a pixel selects; None for all of them, in a dimension `slot`.

        Returns:
            Numbers of experts, with the attributes `flag_values` and `flag_meanings`.
        """
        self.fitted.net.cpu()
        return routing_map(self.fitted, gate, slot)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes the model to a folder: `model.safetensors` and `config.json`.

        Args:
            path: Folder.
            overwrite: Replace a model that is there.
        """
        save_model(self.fitted, Path(path), overwrite=overwrite)

    @classmethod
    def load(
        cls, path: str | Path, *, net: nn.Module | None = None, transform: tuple[Any, Any] | None = None,
        progress: bool = True,
    ) -> GridRegressor:  # fmt: skip
        """Opens a model that `save` or `smoe fit` wrote. No code of its folder is run.

        Args:
            path: Folder of the model, wherever it was moved.
            net: The module itself, if the model was fitted with one of your own.
            transform: The function and its inverse, if the model was fitted with your own.
            progress: Show progress in a later `fit`.

        Raises:
            DataError: If the folder holds no model.
        """
        if (Path(path) / "recipe.json").is_file():
            raise DataError(f"{path} is a run of an experiment of the paper: smoe_paper.load opens it")
        fitted = load_model(Path(path), net, None if transform is None else OwnTransform(*transform))
        model = cls(net if net is not None else fitted.options.net, progress=progress)
        model.options = replace(fitted.options)
        model._fitted = fitted
        return model

    def _tracked(self, reporter: Reporter, folder: Path | None) -> Reporter:
        if self.options.log_with is None:
            return reporter
        return TrackedReporter(reporter, self.options.log_with, folder or Path("smoe-logs"))

    def __repr__(self) -> str:
        state = self._fitted.describe() if self._fitted is not None else "not fitted"
        return f"GridRegressor({state})"

    def _repr_html_(self) -> str:
        """What notebooks show."""
        lines = [repr(self)]
        if self._fitted is not None:
            lines += [self._fitted.verdict, *self._fitted.notes, self._fitted.ladder.describe()]
        return html_text("\n".join(line for line in lines if line))


def _check_names(options: Mapping[str, Any]) -> None:
    known = [each.name for each in fields(RegressorOptions)]
    for name in options:
        if name not in known:
            raise OptionError(f"GridRegressor has no option {name!r}; {suggest(name, known)}")


@contextmanager
def _nothing_left_of_bad_data(folder: Path | None) -> Iterator[None]:
    """Removes fields that were streamed from data that cannot be used; an interrupt keeps them, for a later run."""
    try:
        yield
    except DataError:
        if folder is not None:
            shutil.rmtree(folder / "fields", ignore_errors=True)
            with suppress(OSError):
                folder.rmdir()
        raise


load = GridRegressor.load


def _blocks(pairs: Pairs, folds: int) -> list[Period]:
    if folds < 2:
        raise OptionError(f"folds must be at least 2, got {folds}")
    times = np.unique(pairs.valid)
    edges = times[(np.arange(1, folds) * len(times)) // folds]
    years = TimeLabels(times, pairs.calendar).months(times) // 12
    firsts = times[np.flatnonzero(np.diff(years)) + 1]
    if len(firsts) >= 2 * folds:
        # The nearest beginnings of years.
        edges = firsts[np.abs(firsts[:, None] - edges).argmin(axis=0)]
    starts = [int(pairs.starts.min()), *map(int, edges)]
    stops = [*map(int, edges), int(times[-1]) + 1]
    return [Period(start, stop, pairs.calendar) for start, stop in zip(starts, stops, strict=True)]


def write_predictions(
    model: Any, inputs: Any, output: Path, *, overwrite: bool = False, open_options: OpenOptions | None = None
) -> None:
    """Predicts a block of times at once, so that inputs may be larger than memory, and writes what was predicted."""
    import dask

    fitted = model.fitted
    whole = predict_lazily(fitted, open_inputs(fitted, inputs, open_options))
    whole = with_provenance(whole, f"predicted by smoe predict ({fitted.describe()})")
    # One block after the other: each takes as much memory as there is for it.
    with dask.config.set(scheduler="synchronous"):
        write_cf(whole, output, overwrite=overwrite)
