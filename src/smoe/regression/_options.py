"""How a regressor is made and fitted. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from smoe.errors import OptionError, suggest
from smoe.training.plan import TRACKERS, Tracker

NetName = Literal[
    "layer", "resnet", "unet",
    "ladder", "persistence", "mean-error", "climatology", "damped", "linear", "ridge",
]  # fmt: skip
Objective = Literal["mse", "mae", "quantiles", "gaussian"]

SIMPLE: dict[str, str | None] = {
    "ladder": None,
    "persistence": "persistence",
    "mean-error": "input + map of mean errors",
    "climatology": "climatology",
    "damped": "damped anomaly",
    "linear": "linear regression",
    "ridge": "ridge regression",
}
"""Nets that are simple models alone, by the rung of the ladder that they are; None: the best of them."""

Missing = Literal["refuse", "drop", "fill"]

MACHINE_OPTIONS = ("max_memory_gb", "device", "num_threads", "num_workers", "log_with")
"""Options of the machine that fits: neither stored with a model nor taken from its files."""


class OwnTransform(str):
    """A transform of the user's own: a function and its inverse, of arrays. Files keep that there was one: `own`."""

    functions: tuple[Callable[[Any], Any], Callable[[Any], Any]]
    __slots__ = ("functions",)

    def __new__(cls, function: Callable[[Any], Any], inverse: Callable[[Any], Any]) -> OwnTransform:
        found = super().__new__(cls, "own")
        found.functions = (function, inverse)
        return found

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.functions


@dataclass(frozen=True)
class RegressorOptions:
    """Options of a `GridRegressor`.

    Attributes:
        lead: Time from an input to its target, such as `3D`, `6h`, `1 month`, or several of them, `6h, 24h`; None for
            inputs and targets of the same time, and for forecasts that have lead times of their own.
        net: `layer`, one SMoE layer; `resnet`, residual blocks; `unet`, a U-Net, for grids only. On a mesh, the layers
            are those of HEALPix spheres for a HEALPix file and those of graphs for others. `ladder` is the best of the
            simple models without a net; `persistence`, `mean-error`, `climatology`, `damped`, `linear` and `ridge` are
            one of them.
        filters: Filters of the convolutions; of a `layer`, the experts selected at each pixel.
        num_blocks: Residual blocks of a `resnet`.
        num_experts: Experts for each filter.
        local_affine: End with a learned scale and offset for each pixel and target.
        objective: `mse`, `mae`, `quantiles`, or `gaussian` for mean and spread by the CRPS.
        quantiles: Quantiles of the objective `quantiles`, ascending.
        location: Whether fields on the points (`node`) or on the faces (`face`) of a mesh are used, where it has both.
        area_weights: Weigh pixels by their area in the objective and the scores, where the grid has latitudes.
        missing: What becomes of values that are missing at some times only: `refuse` them, `drop` their times, or
            `fill` inputs with the pixel's mean and leave targets out of the objective. Pixels without a value at any
            time, such as land in a field of the sea, are masked in any case.
        transform: Learn the targets, and inputs that they continue, as `log1p` or `sqrt`, for precipitation, or as
            `logit`, for shares; in Python also a function of arrays and its inverse, `(numpy.cbrt, lambda x: x**3)`.
            Predictions and scores are in the units of the data.
        lower: Lowest value that is predicted, such as 0 for precipitation; None: no bound.
        upper: Highest value that is predicted.
        regrid: Interpolate the inputs to the grid of the targets where they differ: bilinearly between rows and columns
            of latitudes and longitudes, else by inverse distance from the four nearest pixels.
        learning_rate: Learning rate of Adam at the start.
        batch_size: Samples of a training step; None: 16, and more on small grids with many times.
        max_epochs: Most epochs.
        patience: Epochs without a better validation after which the training ends.
        validation_share: Share of the times, the last ones, that validate if no period is given.
        compare: Fit a plain net of the same size and budget beside the SMoE net; `auto` does so for small data.
        keep: What predicts: the `better` one of the simple models, the SMoE net and plain nets on the validation part,
            or the `smoe` net in any case. The scores, the history of predictions and `config.json` name it.
        refit: Fit the simple models to the training and the validation period once all is chosen; `auto` does so if
            there is a test period.
        quick: Few epochs, and no plain nets to compare with.
        max_memory_gb: Data larger than this are streamed into a memory-mapped file; None: half of the free memory.
        seed: Seed of weights and shuffles.
        device: `auto` takes an accelerator if there is one.
        num_threads: Threads of torch on a CPU; None leaves torch's choice.
        num_workers: Processes that read batches ahead.
        log_with: Package that records the training, `tensorboard`; None records nothing.
    """

    lead: str | None = None
    net: NetName = "resnet"
    filters: int = 8
    num_blocks: int = 2
    num_experts: float = 4.0
    local_affine: bool = True
    objective: Objective = "mse"
    quantiles: tuple[float, ...] = (0.1, 0.5, 0.9)
    location: Literal["node", "face"] | None = None
    area_weights: bool = True
    missing: Missing = "refuse"
    transform: str | None = None
    lower: float | None = None
    upper: float | None = None
    regrid: bool = False
    learning_rate: float = 5e-3
    batch_size: int | None = None
    max_epochs: int = 32
    patience: int = 8
    validation_share: float = 0.2
    compare: Literal["auto", "yes", "no"] = "auto"
    keep: Literal["better", "smoe"] = "better"
    refit: Literal["auto", "yes", "no"] = "auto"
    quick: bool = False
    max_memory_gb: float | None = None
    seed: int = 0
    device: Literal["auto", "cpu"] = "auto"
    num_threads: int | None = None
    num_workers: int = 0
    log_with: Tracker | None = None

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for name in ("net", "objective", "missing", "compare", "keep", "refit"):
            value, known = getattr(self, name), get_args(hints[name])
            if value not in known:
                raise OptionError(
                    f"{name} must be one of {', '.join(known)}, got {value!r}; {suggest(str(value), known)}"
                )
        if self.transform not in (None, "log1p", "sqrt", "logit", "own"):
            raise OptionError(f"transform must be log1p, sqrt or logit, got {self.transform!r}")
        if self.transform is not None and self.objective == "gaussian":
            raise OptionError("a transform has no spread in the units of the data: set the objective to quantiles")
        if self.location not in (None, "node", "face"):
            raise OptionError(f"location must be node or face, got {self.location!r}")
        if self.log_with is not None and self.log_with not in TRACKERS:
            raise OptionError(f"log_with must be one of {', '.join(TRACKERS)}, got {self.log_with!r}")
        for name in ("filters", "num_blocks", "batch_size", "max_epochs", "patience"):
            value = getattr(self, name)
            if name == "batch_size" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(f"{name} must be a whole number of at least 1, got {value!r}")
        if not self.num_experts >= 1.0:
            raise OptionError(
                f"num_experts is the number of experts for each filter, at least 1, got {self.num_experts}"
            )
        if not self.quantiles or not all(0.0 < q < 1.0 for q in self.quantiles):
            raise OptionError(f"quantiles must lie between 0 and 1, got {self.quantiles}")
        if list(self.quantiles) != sorted(set(self.quantiles)):
            raise OptionError(f"quantiles must ascend, got {self.quantiles}")
        if self.lower is not None and self.upper is not None and not self.lower < self.upper:
            raise OptionError(f"lower must be below upper, got {self.lower} and {self.upper}")
        if not 0.0 < self.validation_share < 1.0:
            raise OptionError(f"validation_share must lie between 0 and 1, got {self.validation_share}")
        if not self.learning_rate > 0.0:
            raise OptionError(f"learning_rate must be positive, got {self.learning_rate}")

    @property
    def leads(self) -> tuple[str, ...]:
        """The lead, or all of them, ascending."""
        return () if self.lead is None else tuple(self.lead.split(", "))

    @property
    def last_lead(self) -> str | None:
        """The longest lead."""
        return self.leads[-1] if self.leads else None

    @property
    def outputs_per_target(self) -> int:
        """Numbers that the net gives for each target: one, the quantiles, or mean and spread."""
        return {"quantiles": len(self.quantiles), "gaussian": 2}.get(self.objective, 1)
