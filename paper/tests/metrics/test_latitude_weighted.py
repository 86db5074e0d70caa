from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scores.continuous
import scores.functions
import torch
import xarray as xr
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from smoe.training.plan import TrainingPlan
from smoe.training.task import Task, evaluate
from smoe_paper.metrics import LatitudeWeightedRMSE

# cos(0) = 1 and cos(60) = 1/2, whose mean is 3/4: the rows weigh 4/3 and 2/3.
LATITUDE = (0.0, 60.0)
# 5.625 degrees
GRID = np.arange(-87.1875, 90, 5.625)
METRIC = LatitudeWeightedRMSE(("z_500", "t_850"), GRID, (1000.0, 2.0))


def score(metric: LatitudeWeightedRMSE, prediction: Tensor, target: Tensor) -> dict[str, float]:
    return metric.values(metric.totals(prediction, target))


def random_pair(num_samples: int = 6, num_channels: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (num_samples, num_channels, len(GRID), 64)
    target = torch.randn(shape, generator=generator)
    return target + 0.3 * torch.randn(shape, generator=generator), target


def test_values_are_those_of_other_packages() -> None:
    prediction, target = random_pair()
    std, mean = np.array([1000.0, 3.0]), np.array([54000.0, 280.0])
    physical = [
        xr.DataArray(
            fields.double().numpy() * std[:, None, None] + mean[:, None, None],
            dims=("time", "channel", "lat", "lon"),
            coords={"lat": GRID},
        )
        for fields in (prediction, target)
    ]
    weights: Any = scores.functions.create_latitude_weights(physical[0].lat)
    theirs: Any
    arguments = (["z_500", "t_850"], GRID, std)
    rmse = score(LatitudeWeightedRMSE(*arguments), prediction, target)
    for channel, name in enumerate(arguments[0]):
        forecast, truth = (fields.isel(channel=channel) for fields in physical)
        theirs = scores.continuous.rmse(forecast, truth, weights=weights)
        assert rmse[f"rmse_{name}"] == pytest.approx(float(theirs), rel=1e-6)


def test_batches_and_processes_do_not_change_values() -> None:
    metric = METRIC
    prediction, target = random_pair(7)
    whole = score(metric, prediction, target)
    # As two processes with batches of 4, 2 and 1 would add them up.
    parts = [metric.totals(prediction[part], target[part]) for part in (slice(0, 4), slice(4, 6), slice(6, 7))]
    assert parts[0].shape == (2, metric.num_totals) and parts[0].dtype == torch.float64
    assert metric.values(parts[1] + (parts[2] + parts[0])) == pytest.approx(whole, rel=1e-12)
    for batch_size in (1, 3, 7):
        task = Task(
            model := nn.Linear(1, 1),
            torch.optim.SGD(model.parameters()),
            nn.functional.mse_loss,
            [metric],
            {"test": TensorDataset(prediction, target)},
            torch.utils.data.default_collate,
            seed=0,
        )
        plan = TrainingPlan(evaluation_batch_size=batch_size)
        values = evaluate(Accelerator(cpu=True), nn.Identity(), task, "test", plan, task.metrics)
        assert values == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("which", ["prediction", "target"])
def test_a_nan_is_not_hidden(which: str) -> None:
    metric = METRIC
    prediction, target = random_pair()
    (prediction if which == "prediction" else target)[3, 1, 2, 5] = math.nan
    values = score(metric, prediction, target)
    assert math.isnan(values[metric.names[1]])
    assert math.isfinite(values[metric.names[0]])


def test_bad_arguments_are_refused() -> None:
    metric = LatitudeWeightedRMSE(["z_500"], LATITUDE, [1.0])
    for shape in ((1, 2, 2, 2), (1, 1, 3, 2), (1, 2, 2)):
        with pytest.raises(ValueError, match=r"prediction must have shape \(B, 1, 2, W\) for rmse_z_500, got"):
            metric.totals(torch.zeros(shape), torch.zeros(shape))
