"""Batches, predictions and metrics summed over them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset, default_collate

from smoe.training.plan import TrainingPlan
from smoe.training.task import MeanLoss, MetricSums, ShuffledBatches, Task, load_batches, predict
from smoe_paper.metrics import MeanAbsoluteError, MeanSquaredError, PercentWithin


def epoch(batches: ShuffledBatches, number: int, first_batch: int = 0) -> list[list[int]]:
    batches.start(number, first_batch)
    return list(batches)


def test_an_epoch_holds_each_sample_once_and_epochs_differ() -> None:
    batches = ShuffledBatches(12, 4, seed=0)
    first, second = epoch(batches, 1), epoch(batches, 2)
    assert sorted(index for batch in first for index in batch) == list(range(12))
    assert first != second
    assert epoch(batches, 1) == first
    assert epoch(ShuffledBatches(30, 5, seed=0), 1) != epoch(ShuffledBatches(30, 5, seed=1), 0)


def test_a_resumed_epoch_goes_on_where_it_stopped() -> None:
    batches = ShuffledBatches(50, 8, seed=3)
    assert epoch(batches, 5, first_batch=2) == epoch(batches, 5)[2:]
    batches.start(5, 2)
    assert len(batches) == 4 and batches.num_batches == 6


def test_processes_share_each_batch_of_a_single_process() -> None:
    whole = epoch(ShuffledBatches(40, 8, seed=1), 2)
    shares = [epoch(ShuffledBatches(40, 8, seed=1, process=rank, num_processes=2), 2) for rank in range(2)]
    for batch, left, right in zip(whole, *shares, strict=True):
        assert len(left) == len(right) == 4
        assert sorted(left + right) == sorted(batch)


def test_refuses_batches_that_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="a batch of 9 cannot be shared equally by 2 processes"):
        ShuffledBatches(40, 9, seed=0, num_processes=2)
    with pytest.raises(ValueError, match="3 samples do not fill one batch of 4"):
        ShuffledBatches(3, 4, seed=0)


class Counted(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that hold their number, and keep which batches were read."""

    def __init__(self) -> None:
        self.read: list[list[int]] = []

    def __len__(self) -> int:
        return 7

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        if 6 in indices:
            raise ValueError("sample 6 cannot be read")
        self.read.append(indices)
        return torch.tensor(indices), torch.tensor(indices) + 10


def test_a_thread_reads_one_batch_ahead_and_in_order() -> None:
    samples = Counted()
    found = []
    batches = load_batches(samples, [[0, 1], [2, 3], [4, 5]], lambda batch: batch, "cpu", reads_ahead=True)
    for number, (input, target) in enumerate(batches):
        assert torch.equal(target, input + 10)
        found.append(input.tolist())
        # The next batch may have been read, but not the one after it.
        assert len(samples.read) <= number + 2
    assert found == samples.read == [[0, 1], [2, 3], [4, 5]]


def test_what_the_thread_raises_is_raised_where_its_batch_is_due() -> None:
    batches = load_batches(Counted(), [[0, 1], [2, 3], [4, 5], [6]], lambda batch: batch, "cpu", reads_ahead=True)
    assert [next(batches)[0].tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match="sample 6 cannot be read"):
        next(batches)


class BlockedSignals(Dataset[Tensor]):
    """What the process that reads leaves to the one that trains."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Tensor:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        return torch.tensor([number in blocked for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)])


def test_processes_that_read_leave_signals_to_the_one_that_trains() -> None:
    samples = BlockedSignals()
    for num_workers, is_blocked in ((0, False), (1, True)):
        batches = load_batches(samples, [[0, 1]], lambda parts: (parts[0], parts[1]), "cpu", num_workers)
        input, _ = next(batches)
        assert input.tolist() == [is_blocked] * 3
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


PAIRS = TensorDataset(torch.arange(7.0)[:, None], 10.0 * torch.arange(7.0)[:, None])


def double() -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 2.0)
    return model


def predictions(
    model: nn.Module, batch_size: int, process: int = 0, num_processes: int = 1
) -> Iterator[tuple[Tensor, Tensor]]:
    processes: Any = SimpleNamespace(process_index=process, num_processes=num_processes, device=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters())
    task = Task(model, optimizer, F.mse_loss, [], {"test": PAIRS}, default_collate, seed=0)
    return predict(processes, model, task, "test", TrainingPlan(evaluation_batch_size=batch_size))


def test_predictions_come_in_order_with_their_targets() -> None:
    batches = list(predictions(double(), 3))
    assert [len(target) for _, target in batches] == [3, 3, 1]
    assert torch.cat([prediction for prediction, _ in batches]).flatten().tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert torch.cat([target for _, target in batches]).flatten().tolist() == [0, 10, 20, 30, 40, 50, 60]


def test_processes_share_the_samples() -> None:
    shares = [predictions(double(), 2, process, 3) for process in range(3)]
    found = [torch.cat([target for _, target in batches]).flatten().tolist() for batches in shares]
    assert found == [[0, 30, 60], [10, 40], [20, 50]]


def test_the_model_evaluates_without_gradients_and_the_caller_keeps_its_mode() -> None:
    model = nn.Sequential(double(), nn.Dropout(0.9)).train()
    for prediction, _ in predictions(model, 4):
        assert not prediction.requires_grad and not model.training
        assert torch.is_grad_enabled()


def test_a_small_last_batch_counts_by_its_pixels() -> None:
    target = torch.zeros(3, 1, 1, 2)
    prediction = torch.tensor([1.0, 1.0, 1.0, 1.0, 4.0, 4.0]).view(3, 1, 1, 2)
    sums = MetricSums([MeanSquaredError(), MeanAbsoluteError()])
    sums.add(prediction[:2], target[:2])
    sums.add(prediction[2:], target[2:])
    # (4 * 1 + 2 * 16) / 6 and (4 * 1 + 2 * 4) / 6; a mean of batch means would be 8.5 and 2.5.
    assert sums.values() == {"mse": 6.0, "mae": 2.0}
    assert sums.values() == {"mse": 6.0, "mae": 2.0}


def test_metrics_keep_their_own_numbers_of_totals() -> None:
    region_map = torch.tensor([[0, 1]])
    metrics = [PercentWithin(region_map=region_map), MeanSquaredError()]
    target = torch.tensor([[1.0, 2.0]])
    sums = MetricSums(metrics)
    sums.add(torch.tensor([[1.0, 3.0]]), target)
    assert sums.values() == {
        "within_1_percent": 50.0,
        "within_1_percent/region_0": 100.0,
        "within_1_percent/region_1": 0.0,
        "mse": 0.5,
    }


def test_sums_are_in_double_precision() -> None:
    # In float32, 1e8 + 1 is 1e8.
    sums = MetricSums([MeanAbsoluteError()])
    sums.add(torch.tensor([1e8]), torch.zeros(1))
    for _ in range(9):
        sums.add(torch.ones(1), torch.zeros(1))
    assert sums.values()["mae"] == (1e8 + 9) / 10


def test_processes_are_joined_by_one_reduction() -> None:
    reduced: list[torch.Tensor] = []

    def double(totals: torch.Tensor) -> torch.Tensor:
        reduced.append(totals)
        # In place, as torch's own reductions work.
        return totals.mul_(torch.arange(1, totals.numel() + 1))

    sums = MetricSums([MeanSquaredError(), MeanAbsoluteError()])
    sums.add(torch.full((2,), 3.0), torch.zeros(2))
    # Sums and counts (18, 2) and (6, 2), times 1, 2, 3 and 4.
    assert sums.values(double) == {"mse": 18.0 / 4.0, "mae": 18.0 / 8.0}
    assert len(reduced) == 1
    assert sums.values() == {"mse": 9.0, "mae": 3.0}


def test_without_a_batch_there_is_no_value() -> None:
    with pytest.raises(ValueError, match="mse needs at least one pixel"):
        MetricSums([MeanSquaredError()]).values()
    assert MetricSums([]).values() == {}


def test_two_metrics_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="a name of its own, got 'mse' 2 times"):
        MetricSums([MeanSquaredError(), MeanAbsoluteError(), MeanSquaredError()])


def test_the_mean_loss_weighs_a_small_last_batch_by_its_samples() -> None:
    metric = MeanLoss(F.mse_loss)
    first = metric.totals(torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1))
    last = metric.totals(torch.tensor([[2.0]]), torch.zeros(1, 1))
    # (1 + 9 + 4) / 3
    assert metric.values(first + last)["loss"] == pytest.approx(14 / 3)
