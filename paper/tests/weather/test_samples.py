from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from memory_source import CONSTANTS, MemorySource, Silent
from smoe.errors import DataError
from smoe_paper.weather.commands import Preparation
from smoe_paper.weather.prepare import prepare
from smoe_paper.weather.samples import WeatherSamples
from smoe_paper.weather.store import WeatherStore

SOURCE = MemorySource(all_years=(2000, 2001, 2003), step_hours=3)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> WeatherStore:
    path = tmp_path_factory.mktemp("samples") / "store"
    prepare(SOURCE, path, Preparation((2000, 2001), (2000, 2001), SOURCE.names, CONSTANTS), Silent())
    return prepare(SOURCE, path, Preparation((2003, 2003), None, SOURCE.names, CONSTANTS), Silent())


def field(store: WeatherStore, channel: str, time: np.datetime64) -> np.ndarray:
    """The normalised field of a channel, from the source and not from the store's file."""
    year = int(str(time)[:4])
    (step,) = np.flatnonzero(SOURCE.times(year) == time)
    value = SOURCE.read(channel, year)[step].astype(np.float64)
    if channel == "tp":
        value = np.log(value + 0.001) - np.log(0.001)
    index = store.channels.index(channel)
    return ((value - store.mean[index]) / store.std[index]).astype(np.float32)


def test_a_sample_is_the_context_the_constants_and_the_target(store: WeatherStore) -> None:
    samples = WeatherSamples(store, (2000, 2001), lead_hours=72)
    index = 1234
    input, target = samples[index]
    time = samples.init_time(index)
    assert samples.valid_time(index) == time + np.timedelta64(72, "h")
    assert input.shape == (3 * 5 + 3, 4, 5) and input.dtype == target.dtype == torch.float32
    for channel, name in enumerate(samples.input_names):
        if "@" in name:
            variable, _, hours = name.partition("@")
            expected = field(store, variable, time + np.timedelta64(int(hours.removesuffix("h")), "h"))
        else:
            raw = SOURCE.read_constant(name).astype(np.float64)
            expected = (raw - raw.mean()) / raw.std()
        np.testing.assert_allclose(input[channel].numpy(), expected, rtol=1e-6, atol=1e-7, err_msg=name)
    for channel, name in enumerate(("z_500", "t_850", "t2m")):
        np.testing.assert_array_equal(target[channel].numpy(), field(store, name, samples.valid_time(index)))


def test_the_samples_are_those_whose_times_are_all_there(store: WeatherStore) -> None:
    samples = WeatherSamples(store, (2000, 2001), lead_hours=72)
    num_steps = len(SOURCE.times(2000)) + len(SOURCE.times(2001))
    assert len(samples) == num_steps - 12 // 3 - 72 // 3
    assert samples.init_time(0) == np.datetime64("2000-01-01T12")
    assert samples.valid_time(len(samples) - 1) == SOURCE.times(2001)[-1]
    whole = WeatherSamples(store, (2000, 2003), lead_hours=72)
    assert whole.missing_years == (2002,)
    # No window spans the missing year: it costs a context and a lead once more.
    assert len(whole) == len(samples) + len(SOURCE.times(2003)) - 12 // 3 - 72 // 3
    times = {whole.init_time(index) for index in range(len(samples), len(whole))}
    assert min(times) == np.datetime64("2003-01-01T12")


def test_a_split_does_not_reach_into_its_neighbour(store: WeatherStore) -> None:
    samples = WeatherSamples(store, (2000, 2000), lead_hours=72)
    assert samples.valid_time(len(samples) - 1) == np.datetime64("2000-12-31T21")
    later = WeatherSamples(store, (2001, 2001), lead_hours=72)
    assert later.init_time(0) == np.datetime64("2001-01-01T12")


def test_starts_can_be_thinned_and_the_first_hours_skipped(store: WeatherStore) -> None:
    samples = WeatherSamples(store, (2000, 2001), start_every_hours=24, skip_hours=24)
    # Skipped hours are no context either: 24 + 12 h, then the next midnight.
    assert samples.init_time(0) == np.datetime64("2000-01-03T00")
    assert samples.init_time(1) == np.datetime64("2000-01-04T00")
    assert WeatherSamples(store, (2000, 2001), skip_hours=24).init_time(0) == np.datetime64("2000-01-02T12")


def test_a_batch_is_its_samples_stacked(store: WeatherStore) -> None:
    samples = WeatherSamples(store, (2000, 2003), targets=("t2m", "z_500"), lead_hours=(6, 24))
    indices = [5, 0, len(samples) - 1, 5]
    inputs, targets = samples.__getitems__(indices)
    for position, index in enumerate(indices):
        assert torch.equal(inputs[position], samples[index][0]) and torch.equal(targets[position], samples[index][1])


def test_leads_are_drawn_anew_in_each_epoch_and_again_the_same(store: WeatherStore) -> None:
    samples = WeatherSamples(store, (2000, 2001), lead_hours=(6, 120), seed=3)
    hours = {}
    for epoch in (1, 2, 1):
        samples.start_epoch(epoch)
        drawn = [int((samples.valid_time(i) - samples.init_time(i)).astype(int)) for i in range(len(samples))]
        assert hours.setdefault(epoch, drawn) == drawn
    assert hours[1] != hours[2]
    assert set(hours[1]) == set(range(6, 121, 3))
    # Uniform: the mean of so many draws of variance 35^2 / 12 * 9 lies within 4 deviations of 63.
    assert abs(np.mean(hours[1]) - 63) < 4 * np.std(range(6, 121, 3)) / np.sqrt(len(samples))
    samples.start_epoch(1)
    input, target = samples[17]
    assert torch.equal(input[-1], torch.full((4, 5), hours[1][17] / 100))
    np.testing.assert_array_equal(target[0].numpy(), field(store, "z_500", samples.valid_time(17)))
    other_seed = WeatherSamples(store, (2000, 2001), lead_hours=(6, 120), seed=4)
    other_seed.start_epoch(1)
    assert other_seed.valid_time(0) != samples.valid_time(0) or other_seed.valid_time(1) != samples.valid_time(1)


def test_a_fixed_lead_is_for_evaluation(store: WeatherStore) -> None:
    samples = WeatherSamples(store, (2000, 2001), lead_hours=(6, 120), fixed_lead=72)
    direct = WeatherSamples(store, (2000, 2001), lead_hours=72)
    assert len(samples) == len(direct) and samples.num_input_channels == direct.num_input_channels + 1
    assert torch.equal(samples[9][0][:-1], direct[9][0]) and torch.equal(samples[9][1], direct[9][1])
    assert torch.equal(samples[9][0][-1], torch.full((4, 5), 0.72))


# A spawned process gets the samples by pickle, and has to import torch first.
@pytest.mark.parametrize(("context", "num_workers"), [("fork", 2), ("spawn", 1)])
def test_workers_read_what_one_process_reads(store: WeatherStore, context: str, num_workers: int) -> None:
    samples = WeatherSamples(store, (2000, 2000), lead_hours=(6, 24), start_every_hours=48)
    samples.start_epoch(7)
    alone = list(DataLoader(samples, batch_size=32, collate_fn=WeatherSamples.collate))
    loader = DataLoader(
        samples,
        batch_size=32,
        collate_fn=WeatherSamples.collate,
        num_workers=num_workers,
        multiprocessing_context=context,
    )
    together = list(loader)
    assert len(alone) == len(together) > 3
    for (input, target), (other_input, other_target) in zip(alone, together, strict=True):
        assert torch.equal(input, other_input) and torch.equal(target, other_target)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lead_hours": 71}, "lead_hours 71 is not a multiple of the 3 hours between steps"),
        ({"lead_hours": (12, 6)}, "from the smallest to the largest, got (12, 6)"),
        ({"lead_hours": 72, "fixed_lead": 72}, "fixed_lead is for a range of leads"),
        ({"context_hours": (12, 5, 0)}, "context_hours 5 is not a multiple of the 3 hours"),
        ({"context_hours": (0, 6, 12)}, "the longest first, such as 12 6 0; got (0, 6, 12)"),
        ({"start_every_hours": 5}, "start_every_hours 5 is not a multiple of the 3 hours"),
        ({"targets": ("z_50",)}, "has no channel 'z_50'; did you mean 'z_500'?"),
        ({"inputs": ("q_925",)}, "has no channel 'q_925'; it has z_500, t_850, t2m, tisr, tp"),
        ({"constants": ("lms",)}, "has no constant 'lms'; did you mean 'lsm'?"),
        ({"years": (1979, 2015), "lead_hours": 24 * 400}, "the years 1979 to 2015 hold no sample"),
        ({"years": (2002, 2002)}, "has 2000-2001, 2003; choose other years, or prepare them"),
    ],
)
def test_what_cannot_be_sampled_is_refused(store: WeatherStore, options: dict[str, object], text: str) -> None:
    years = options.pop("years", (2000, 2001))
    with pytest.raises(DataError) as caught:
        WeatherSamples(store, years, **options)  # type: ignore[arg-type]
    options["years"] = years
    assert text in str(caught.value)


@pytest.mark.parametrize("index", [-1, 10**6])
def test_an_index_outside_is_refused(store: WeatherStore, index: int) -> None:
    samples = WeatherSamples(store, (2000, 2001))
    with pytest.raises(IndexError, match=rf"index must be in \[0, {len(samples) - 1}\], got {index}"):
        samples[index]
    with pytest.raises(IndexError):
        samples.__getitems__([0, index])
