from __future__ import annotations

import pytest

from smoe.training.batches import OrderedBatches, ShuffledBatches


def epoch(batches: ShuffledBatches, number: int, first_batch: int = 0) -> list[list[int]]:
    batches.start(number, first_batch)
    return list(batches)


def test_an_epoch_holds_each_sample_once_and_epochs_differ() -> None:
    batches = ShuffledBatches(12, 4, seed=0)
    first, second = epoch(batches, 1), epoch(batches, 2)
    assert sorted(index for batch in first for index in batch) == list(range(12))
    assert first != second
    assert epoch(batches, 1) == first


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


def test_seeds_and_epochs_do_not_collide() -> None:
    assert epoch(ShuffledBatches(30, 5, seed=0), 1) != epoch(ShuffledBatches(30, 5, seed=1), 0)


def test_refuses_batches_that_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="a batch of 9 cannot be shared equally by 2 processes"):
        ShuffledBatches(40, 9, seed=0, num_processes=2)
    with pytest.raises(ValueError, match="3 samples do not fill one batch of 4"):
        ShuffledBatches(3, 4, seed=0)


@pytest.mark.parametrize("num_processes", [1, 2, 3])
def test_evaluation_sees_each_sample_once(num_processes: int) -> None:
    seen = [
        index
        for process in range(num_processes)
        for batch in OrderedBatches(11, 4, process, num_processes)
        for index in batch
    ]
    assert sorted(seen) == list(range(11))
    assert len(OrderedBatches(11, 4)) == len(list(OrderedBatches(11, 4))) == 3
