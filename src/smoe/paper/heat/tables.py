"""Every heat-diffusion table of the paper, and five of our own (sections 3.1, B and C). Imports nothing heavy."""

from __future__ import annotations

from dataclasses import replace

from smoe.experiments.paper import PAPER_RESULTS, PaperResult, heat_result
from smoe.experiments.reproduction.tables import Experiment, ResultTable, Row, Scale, ShownMetric
from smoe.options import RoutingTraining
from smoe.paper.heat.models import SpatialMoEModel
from smoe.paper.heat.notes import NOTES
from smoe.paper.heat.recipes import HEAT_RECIPES, AuxiliaryLosses, HeatRecipe
from smoe.paper.heat.rule_tables import loss_table, rule_table, unit_table

SMOE = HEAT_RECIPES["heat/smoe"]
END_TO_END = RoutingTraining(training_rule="end_to_end", damping=None)


def _smoe(routing: RoutingTraining | None = None, auxiliary: AuxiliaryLosses | None = None, **model) -> HeatRecipe:
    return HeatRecipe(
        model=SpatialMoEModel(**model), routing=routing or RoutingTraining(), auxiliary=auxiliary or AuxiliaryLosses()
    )


def _row(table: str, labels: str | tuple[str, ...], recipe: HeatRecipe, paper: PaperResult | None = None) -> Row:
    cells = (labels,) if isinstance(labels, str) else labels
    row = Row(cells, recipe, () if paper is None else (paper,))
    return replace(row, note=NOTES.get((table, row.label), ""))


def _mark(is_on: bool) -> str:
    return "yes" if is_on else "no"


def _main() -> ResultTable:
    labels = {
        "heat/conv": "Convolution",
        "heat/coordconv": "CoordConv",
        "heat/condconv": "CondConv",
        "heat/lrlcn": "LRLCN",
        "heat/lrlcn-nd": "LRLCN-ND",
        "heat/lcn": "LCN",
        "heat/fc": "FC",
        "heat/vit": "ViT",
        "heat/vmoe": "V-MoE",
        "heat/smoe": "SMoE",
    }
    name = "heat/main"
    rows = [_row(name, label, HEAT_RECIPES[recipe], PAPER_RESULTS[recipe]) for recipe, label in labels.items()]
    return ResultTable(name, "Heat diffusion: all models", ("model",), tuple(rows), "Figure 3, left", NOTES[name])


def _training() -> ResultTable:
    name = "heat/training"
    paper = {
        (False, False): heat_result(91.5, 0.4, 14),
        (False, True): heat_result(91.6, 0.2, 16),
        (True, False): heat_result(96.7, 0.4, 15),
        (True, True): heat_result(100.0, 0.0, 8),
    }
    rows = [
        _row(
            name,
            (_mark(rc_loss), _mark(damped)),
            _smoe(RoutingTraining("rc" if rc_loss else "end_to_end", damping=0.0 if damped else None)),
            result,
        )
        for (rc_loss, damped), result in paper.items()
    ]
    return ResultTable(
        name, "RC loss and expert error damping", ("RC loss", "damping"), tuple(rows), "Table 1", NOTES[name]
    )


def _gates() -> ResultTable:
    name = "heat/gates"
    rows = [
        _row(name, "Fully-connected", _smoe(gate="linear"), heat_result(85.2, 5.7)),
        _row(name, "3 x 3 convolution", _smoe(gate="conv"), heat_result(91.3, 0.3)),
        _row(name, "3 x 3 CoordConv", _smoe(gate="coordconv"), heat_result(91.5, 0.4)),
        _row(name, "3 x 3 LCN", _smoe(gate="lcn"), heat_result(96.3, 1.2)),
        _row(name, "3 x 3 CoordConv x 3", _smoe(gate="coordconv3"), heat_result(91.6, 0.2)),
        _row(name, "Tensor routing", SMOE, heat_result(100.0)),
    ]
    return ResultTable(name, "Gate functions", ("gate",), tuple(rows), "Table 2", NOTES[name])


def _configurations() -> ResultTable:
    name = "heat/configurations"
    rows = [
        _row(name, "six experts", _smoe(num_experts=6), heat_result(100.0)),
        _row(name, "5 x 5 experts", _smoe(kernel_size=5), heat_result(100.0)),
        _row(name, "two of six experts, summed", _smoe(num_experts=6, num_selected=2), heat_result(100.0)),
    ]
    return ResultTable(
        name, "When the right configuration is not known", ("configuration",), tuple(rows), "section 3.1", NOTES[name]
    )


def _starts() -> ResultTable:
    name = "heat/starts"
    rows = [
        _row(name, ("random", "no", "random", "no"), _smoe(END_TO_END), heat_result(91.5, 0.4)),
        _row(name, ("random", "no", "perfect", "no"), _smoe(END_TO_END, experts_start="true"), heat_result(91.4, 0.4)),
        _row(
            name,
            ("random", "no", "perfect", "yes"),
            _smoe(END_TO_END, experts_start="true", experts_frozen=True),
            heat_result(80.9, 0.2),
        ),
        _row(name, ("perfect", "no", "random", "no"), _smoe(END_TO_END, gate_start="true"), heat_result(96.0, 0.3)),
        _row(name, ("perfect", "yes", "random", "no"), _smoe(END_TO_END, gate="fixed"), heat_result(100.0)),
        _row(
            name,
            ("perfect", "no", "perfect", "no"),
            _smoe(END_TO_END, gate_start="true", experts_start="true"),
            heat_result(100.0),
        ),
    ]
    columns = ("gate starts", "frozen", "experts start", "frozen")
    return ResultTable(
        name, "Starting at the truth, without RC loss and damping", columns, tuple(rows), "Table 6", NOTES[name]
    )


def _normalization() -> ResultTable:
    name = "heat/normalization"
    rows = [
        _row(name, "softmax", _smoe(normalization="softmax"), heat_result(100.0)),
        _row(name, "absolute value", _smoe(normalization="abs"), heat_result(90.2, 0.3)),
        _row(name, "softmax and absolute value", _smoe(normalization="abs_softmax"), heat_result(100.0)),
        _row(name, "none", SMOE, heat_result(100.0)),
    ]
    return ResultTable(name, "Normalisation of the scores", ("normalisation",), tuple(rows), "Table 7", NOTES[name])


# Importance, load, spatial agreement, noise; the paper's result with the RC loss and damping, and without.
_AUXILIARY = (
    ((False, False, False, False), heat_result(100.0), heat_result(91.5, 0.4)),
    ((True, False, False, False), heat_result(100.0), heat_result(90.8, 0.6)),
    ((True, False, False, True), heat_result(95.7, 0.2), heat_result(74.0, 0.2)),
    ((True, True, False, True), heat_result(95.7, 0.3), heat_result(73.9, 0.5)),
    ((False, True, False, True), heat_result(95.7, 0.2), heat_result(74.2, 0.3)),
    ((False, False, False, True), heat_result(95.7, 0.4), heat_result(73.9, 0.5)),
    ((True, False, True, False), heat_result(100.0), heat_result(91.3, 0.2)),
    ((True, False, True, True), heat_result(95.6, 0.5), heat_result(74.1, 0.2)),
    ((True, True, True, True), heat_result(95.7, 0.3), heat_result(73.7, 0.3)),
    ((False, True, True, True), heat_result(95.7, 0.1), heat_result(74.0, 0.4)),
    ((False, False, True, True), heat_result(95.7, 0.2), heat_result(73.9, 0.3)),
)


def _auxiliary(*, rc_loss: bool) -> ResultTable:
    name = "heat/auxiliary" if rc_loss else "heat/auxiliary-end-to-end"
    rows: list[Row] = []
    for (importance, load, agreement, noise), with_rc, without_rc in _AUXILIARY:
        recipe = _smoe(
            RoutingTraining() if rc_loss else END_TO_END,
            AuxiliaryLosses(importance, load, agreement),
            gate_noise=noise,
        )
        labels = tuple(_mark(is_on) for is_on in (importance, load, agreement, noise))
        rows.append(_row(name, labels, recipe, with_rc if rc_loss else without_rc))
    kind = "with" if rc_loss else "without"
    return ResultTable(
        name,
        f"Auxiliary losses and noise, {kind} RC loss and damping",
        ("importance", "load", "spatial agreement", "noise"),
        tuple(rows),
        "Table 8" if rc_loss else "Table 9",
        NOTES[name],
    )


def _experts() -> ResultTable:
    name = "heat/experts"
    rows = [
        _row(name, "Convolution", SMOE, heat_result(100.0)),
        _row(name, "CoordConv", _smoe(experts="coordconv"), heat_result(96.5, 0.3)),
    ]
    return ResultTable(name, "Expert functions", ("experts",), tuple(rows), "Table 10", NOTES[name])


def _weighted() -> ResultTable:
    name = "heat/weighted"
    rows = [
        _row(name, "yes", _smoe(weighted=True), heat_result(100.0)),
        _row(name, "no", SMOE, heat_result(100.0)),
    ]
    return ResultTable(name, "Weighted or not", ("weighted",), tuple(rows), "Table 11", NOTES[name])


SHORT_EPOCHS = 10
QUANTILES = tuple(tenth / 10 for tenth in range(1, 10))
DAMPINGS: tuple[float | None, ...] = (0.0, 0.1, 0.5, None)


def grid_recipe(error_quantile: float, damping: float | None) -> HeatRecipe:
    """A cell of the table of quantiles and damping factors."""
    return _smoe(RoutingTraining(error_quantile=error_quantile, damping=damping))


def _quantile_damping() -> ResultTable:
    name = "heat/quantile-damping"
    rows = [
        _row(name, (f"{quantile:g}", "none" if damping is None else f"{damping:g}"), grid_recipe(quantile, damping))
        for quantile in QUANTILES
        for damping in DAMPINGS
    ]
    return ResultTable(
        name, "Error quantile by damping factor", ("error quantile", "damping factor"), tuple(rows), "", NOTES[name]
    )


def _tolerances() -> ResultTable:
    name = "heat/tolerances"
    equal = ((0.0, 0.0), (1e-5, 1e-5), (1e-4, 1e-4), (1e-3, 1e-3))
    pairs = [("data", *pair) for pair in ((1e-5, 1e-3), *equal, (0.0, 1e-3), (1e-6, 1e-3), (1e-5, 1e-2))]
    # The root mean square of the data is 0.054: the first pair is about that of the data units.
    pairs += [("output", *pair) for pair in ((2e-4, 2e-2), (1e-4, 1e-2), (1e-3, 2e-2), (1e-2, 1e-2))]
    rows = [
        _row(
            name,
            (unit, f"{tolerance:g}", f"{damping_tolerance:g}"),
            _smoe(
                RoutingTraining(tolerance=tolerance, damping_tolerance=damping_tolerance, tolerance_unit=unit)  # type: ignore[arg-type]
            ),
        )
        for unit, tolerance, damping_tolerance in pairs
    ]
    return ResultTable(name, "Tolerances", ("unit", "of the RC loss", "of the damping"), tuple(rows), "", NOTES[name])


def _small(recipe: HeatRecipe) -> HeatRecipe:
    return replace(recipe, data=replace(recipe.data, num_train_runs=250))


def _short(recipe: HeatRecipe) -> HeatRecipe:
    # A step of ViT or of a fully-connected gate takes a hundred times that of an SMoE: ten epochs are half an hour.
    return replace(_small(recipe), training=replace(recipe.training, max_epochs=SHORT_EPOCHS))


def _same(recipe: HeatRecipe) -> HeatRecipe:
    return recipe


HEAT = Experiment(
    name="heat",
    metrics=(ShownMetric("within_1_percent", is_percentage=True),),
    metric_text=(
        "Percentage of test pixels within 1 % of the truth: mean ± standard deviation over the seeds; 100.0 means "
        "every pixel of every seed."
    ),
    tables=(
        _main(),
        _training(),
        _gates(),
        _configurations(),
        _starts(),
        _normalization(),
        _auxiliary(rc_loss=True),
        _auxiliary(rc_loss=False),
        _experts(),
        _weighted(),
        _quantile_damping(),
        _tolerances(),
        rule_table(),
        unit_table(),
        loss_table(),
    ),
    scales=(
        Scale("paper", "1000 training runs of 100 steps", _same),
        Scale("small", "250 of them", _small),
        Scale("short", f"250 of them, stopped after {SHORT_EPOCHS} epochs", _short),
    ),
    data_field="cache_dir",
)
