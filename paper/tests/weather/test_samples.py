from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from memory_source import CONSTANTS, MemorySource, Silent
from smoe.errors import DataError
from smoe_paper.weather.commands import Preparation
from smoe_paper.weather.prepare import prepare
from smoe_paper.weather.store import WeatherSamples, WeatherStore, weekly_means

SOURCE = MemorySource(all_years=(2000, 2001), step_hours=3, days=365)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> WeatherStore:
    path = tmp_path_factory.mktemp("samples") / "store"
    return prepare(SOURCE, path, Preparation((2000, 2001), (2000, 2001), SOURCE.names, CONSTANTS), Silent())


def _step(time: np.datetime64) -> int:
    return int(np.flatnonzero(SOURCE.times(int(str(time)[:4])) == time)[0])


def field(store: WeatherStore, channel: str, time: np.datetime64) -> np.ndarray:
    """The normalised field of a channel, from the source and not from the store's file."""
    year = int(str(time)[:4])
    value = SOURCE.read_year(channel, year)[_step(time)].astype(np.float64)
    if channel == "tp":
        value = np.log(value + 0.001) - np.log(0.001)
    index = store.channels.index(channel)
    return ((value - store.mean[index]) / store.std[index]).astype(np.float32)


def test_a_sample_is_the_context_the_constants_and_the_target(store: WeatherStore) -> None:
    samples = WeatherSamples(store, (2000, 2001), lead_hours=72)
    index = 1234
    input, target = samples[index]
    time = samples.init_times[index]
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
        np.testing.assert_array_equal(target[channel].numpy(), field(store, name, time + np.timedelta64(72, "h")))
    # A report shows it beside its start, in physical units.
    name, start, given = samples.shown(index)
    assert (name, start) == (f"z_500 at {time + np.timedelta64(72, 'h')}:00", "72 h before")
    np.testing.assert_allclose(given, SOURCE.read_year("z_500", int(str(time)[:4]))[_step(time)], rtol=1e-5)


def test_weekly_means_are_those_of_the_week_of_the_forecast(store: WeatherStore) -> None:
    targets = ("t2m", "z_500")
    means = weekly_means(store, targets, (2000, 2000))
    samples = WeatherSamples(store, (2001, 2001), targets=targets, lead_hours=72, means=means)
    start = np.datetime64("2001-01-05T00")
    (index,) = np.flatnonzero(samples.init_times == start)
    second_week = np.datetime64("2000-01-08T00") + np.arange(0, 7 * 24, 3) * np.timedelta64(1, "h")
    input = samples[int(index)][0]
    for name, given in zip(samples.input_names[-2:], input[-2:], strict=True):
        expected = np.mean([field(store, name.removesuffix("@week"), time) for time in second_week], axis=0)
        np.testing.assert_allclose(given.numpy(), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(DataError, match="every week of a year"):
        weekly_means(store, targets, (1990, 1990))


def test_all_times_of_a_sample_are_in_the_store_and_in_the_years(store: WeatherStore) -> None:
    samples = WeatherSamples(store, (2000, 2001), lead_hours=72)
    num_steps = len(SOURCE.times(2000)) + len(SOURCE.times(2001))
    assert len(samples) == num_steps - 12 // 3 - 72 // 3
    assert samples.init_times[0] == np.datetime64("2000-01-01T12")
    # A split does not reach into its neighbour.
    assert WeatherSamples(store, (2000, 2002)).init_times[-1] == np.datetime64("2001-12-28T21")
    assert WeatherSamples(store, (2000, 2000)).init_times[-1] == np.datetime64("2000-12-28T21")
    assert WeatherSamples(store, (2001, 2001)).init_times[0] == np.datetime64("2001-01-01T12")
    # Skipped hours are no context either: 24 + 12 h, then the next midnight.
    thinned = WeatherSamples(store, (2000, 2001), start_every_hours=24, skip_hours=24).init_times
    assert thinned[:2].tolist() == np.array(["2000-01-03T00", "2000-01-04T00"], "datetime64[h]").tolist()


def test_a_batch_is_its_samples_stacked_in_every_process(store: WeatherStore) -> None:
    samples = WeatherSamples(store, (2000, 2001), targets=("t2m", "z_500"), start_every_hours=240)
    loaders = [
        DataLoader(samples, batch_size=32, collate_fn=WeatherSamples.collate, num_workers=number) for number in (0, 2)
    ]
    index = 0
    for (input, target), (other_input, other_target) in zip(*loaders, strict=True):
        assert torch.equal(input, other_input) and torch.equal(target, other_target)
        for place in range(len(input)):
            assert torch.equal(input[place], samples[index][0]) and torch.equal(target[place], samples[index][1])
            index += 1
    assert index == len(samples) > 64


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lead_hours": 71}, "must be multiples of the 3 hours between steps of the store, got 71"),
        ({"lead_hours": 0}, "lead_hours and start_every_hours must be positive"),
        ({"context_hours": (12, 5, 0)}, "multiples of the 3 hours between steps of the store, got 5"),
        ({"context_hours": (0, 6, 12)}, "the longest first, such as 12 6 0; got (0, 6, 12)"),
        ({"targets": ("z_50",)}, "has no channel 'z_50'; did you mean 'z_500'?"),
        ({"inputs": ("q_925",)}, "has no channel 'q_925'; it has z_500, t_850, t2m, tisr, tp"),
        ({"constants": ("lms",)}, "has no constant 'lms'; did you mean 'lsm'?"),
        ({"years": (1979, 2015), "lead_hours": 24 * 800}, "the years 1979 to 2015 hold no sample"),
        ({"years": (2002, 2002)}, "has 2000-2001; choose other years, or prepare them"),
    ],
)
def test_what_cannot_be_sampled_is_refused(store: WeatherStore, options: dict[str, object], text: str) -> None:
    years = options.pop("years", (2000, 2001))
    with pytest.raises(DataError) as caught:
        WeatherSamples(store, years, **options)  # type: ignore[arg-type]
    options["years"] = years
    assert text in str(caught.value)
