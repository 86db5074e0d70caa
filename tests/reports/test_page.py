"""The page as text: escaped, self-contained, small, and complete."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from sample_reports import GRID, place_samples, random_gate, sample_report
from smoe._maps import Axis, Places, make_views, take, thinned
from smoe.diagnostics import similarity_colours
from smoe.errors import DataError
from smoe.reports import _page as page
from smoe.reports._page_data import DETAILS, Detail, page_data
from smoe.reports.run_report import ErrorMap, Monitor, ScoreRow, ScoreSheet, headline

WRITTEN = datetime(2026, 1, 2, tzinfo=UTC)


def headings(text: str) -> list[str]:
    return [heading for _, heading in re.findall(r"<h([123])[^>]*>(.*?)</h\1>", text)]


def data_of(text: str) -> tuple[dict[str, Any], bytes]:
    """Plain values and the block of arrays of a page."""
    plain = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    arrays = re.search(r'<script type="text/plain" id="arrays">(.*?)</script>', text, re.DOTALL)
    assert plain is not None and arrays is not None
    return json.loads(plain[1]), gzip.decompress(base64.b64decode(arrays[1]))


def read(block: bytes, reference: dict[str, Any]) -> np.ndarray:
    kind = {"u8": np.uint8, "u16": np.uint16, "i32": np.int32}[reference["type"]]
    values = np.frombuffer(block, kind, reference["count"], reference["at"])
    if reference.get("steps"):
        return np.cumsum(values, dtype=values.dtype)
    if "step" not in reference:
        return values
    return np.where(values == 65535, np.nan, reference["low"] + values * reference["step"])


def test_a_page_of_one_run_has_every_part() -> None:
    text = page.make_page([sample_report()], WRITTEN)
    assert headings(text) == [
        "heat/smoe", "Scores", "Examples", "Curves", "Routing", "Expert use", "Filters of chosen experts",
        "Routing by epoch", "Errors", "Errors by time and region", "Reliability", "How it was made",
    ]  # fmt: skip
    # Nothing but places on the page, pictures in it, and an empty icon, which keeps browsers from asking for one.
    addresses = re.findall(r'(?:href|src|action|data)="([^"]*)"', text)
    assert len(addresses) > 5
    assert all(each.startswith(("#", "data:image/png;base64,")) or each == "data:," for each in addresses)
    assert text.count("<script") == 3


def test_the_routing_is_compared_with_convolutions_in_words() -> None:
    text = page.make_page([sample_report()], WRITTEN)
    verdict = "the routing helps: it removes 37.5 % of the loss"
    assert f"Compared with the best single convolutions, {verdict}." in text
    whole = "With the best single convolutions in place of all 2 layers the loss is 1.6, with the layers 1"
    assert f"<p>{whole}: {verdict}.</p>" in text
    assert (
        "in place of second the loss is 1.01, with the layer 1: the routing makes no clear difference (0.99 %)" in text
    )
    assert "loss removed" not in text
    assert verdict in page.make_page([sample_report("a"), sample_report("b")], WRITTEN)


def test_the_page_opens_with_a_sentence() -> None:
    text = page.make_page([sample_report()], WRITTEN)
    best = "the best rival, input unchanged (4)."
    gain = "Compared with the best single convolutions, the routing helps: it removes 37.5 % of the loss."
    assert f'<p class="headline">heat/smoe: mse 1 on the test split, 75 % less than {best} {gain}</p>' in text
    report = sample_report()
    rows = (replace(report.scores.rows[0], spreads={"mse": 2.0}), report.scores.rows[1])
    doubtful = headline(replace(report, scores=replace(report.scores, rows=rows, units={"mse": "K2"})))
    assert doubtful.startswith(
        "heat/smoe: mse 1 ± 2 K2 on the test split, not clearly different from the best rival, inp"
    )
    # The deviation of the difference decides where it is known, and nets that the run may be made of are no rivals.
    parts = (replace(rows[0], gap_spreads={"mse": 1.0}), ScoreRow("net", "fit", {"mse": 0.5}, is_part=True), rows[1])
    sure = headline(replace(report, scores=replace(report.scores, rows=parts)))
    assert sure.startswith(
        "heat/smoe: mse 1 ± 2 on the test split, 75 % less than the best rival, input unchanged (4); "
        "better in hindsight is a part of the fit, net (0.5)."
    )
    assert headline(replace(report, scores=replace(report.scores, rows=rows[1:]))) == ""
    # The first score that a rival has, too.
    other = ScoreSheet("test", (replace(rows[0], values={"loss": 2.0, "mse": 1.0}, spreads={}), rows[1]))
    assert "heat/smoe: mse 1 on the test split, 75 % less" in headline(replace(report, scores=other))
    high = ScoreRow("a", "this run", {"accuracy": 90.0}, is_own=True), ScoreRow("b", "here", {"accuracy": 80.0})
    monitor = Monitor("validation/accuracy", is_best_high=True)
    found = headline(replace(report, scores=ScoreSheet("test", high), monitor=monitor))
    assert found == f"heat/smoe: accuracy 90 on the test split, 10 more than the best rival, b (80). {gain}"
    sheet = ScoreSheet("test", high, {"accuracy": "% of the pixels"})
    found = headline(replace(report, scores=sheet, monitor=monitor))
    assert found.startswith("heat/smoe: 90 % of the pixels accuracy on the test split, 10 points more than")


def test_a_routing_without_regions_is_said_to_have_none() -> None:
    places = Places("grid", (40, 40))
    noise = random_gate(places, 4, 1)
    halves = replace(noise, choices=(np.arange(1600) % 40 // 20).astype(np.int32)[None], use=np.array([0.5, 0.5, 0, 0]))
    plain, _ = data_of(page.make_page([sample_report(gates=(noise, halves), regions=None)], WRITTEN))
    captions = [" ".join(gate["caption"]) for gate in plain["runs"][0]["gates"]]
    assert "there are no regions" in captions[0]
    assert "share 98.7 % of their experts, 50 % by chance" in captions[1] and "no regions" not in captions[1]


def test_known_regions_have_the_colours_of_the_experts_that_found_them() -> None:
    places = Places("grid", GRID)
    regions = np.arange(GRID[0] * GRID[1]) * 4 // (GRID[0] * GRID[1])
    gate = random_gate(places, 3, 1)
    # Experts 2, 0 and 1 found regions 0, 1 and 2; nobody found region 3.
    gate = replace(gate, choices=np.array([2, 0, 1, 1], np.int32)[regions][None])
    plain, _ = data_of(page.make_page([sample_report(gates=(gate,), regions=regions)], WRITTEN))
    found = plain["runs"][0]["gates"][0]["regionColours"]
    assert found[:2] == [2, 0] and sorted(found[2:]) == [1, 3]


def test_a_page_of_several_runs_compares_them_first() -> None:
    plain = sample_report("plain", gates=(), is_plain=True, error_maps=(), filters={})
    plain = replace(plain, recipe={"data": {"num_steps": 5}, "seed": 0})
    text = page.make_page([sample_report("a"), plain], WRITTEN)
    assert '<tr><th scope="row">data.num_steps</th><td>3</td><td>5</td></tr>' in text
    assert '<tr><th scope="row">seed</th><td>0</td><td>0</td></tr>' not in text
    assert headings(text)[:5] == ["2 runs", "All runs", "What differs", "Curves together", "Routing side by side"]
    assert text.count("<details") >= 2
    # Runs of other tasks have nothing to compare, and are open.
    row = ScoreRow("b", "this run", {"accuracy": 1.0}, is_own=True)
    text = page.make_page([sample_report("a"), replace(sample_report("b"), scores=ScoreSheet("test", (row,)))], WRITTEN)
    assert headings(text)[:3] == ["2 runs", "All runs", "Scores"] and text.count('<details class="run" open>') == 2


def test_text_from_outside_is_escaped() -> None:
    evil = "<script>\"&'</script>"
    report = sample_report(evil, title=evil, recipe={evil: evil}, facts={evil: evil}, command=evil, remarks=(evil,))
    text = page.make_page([report], WRITTEN)
    assert evil not in text
    assert text.count("<script") == 3
    assert data_of(text)[0]["runs"][0]["label"] == evil
    assert "<" not in page.script_json({evil: evil}) and json.loads(page.script_json({evil: evil})) == {evil: evil}


def test_a_number_that_is_not_finite_is_none_in_the_page() -> None:
    history = [{"epoch": 1, "validation/loss": float("nan")}, {"epoch": 2, "validation/loss": float("inf")}]
    text = page.make_page([sample_report(history=history)], WRITTEN)
    charts = data_of(text)[0]["runs"][0]["charts"]["curves"]
    assert [chart["series"] for chart in charts] == [[["validation/loss", [1, 2], [None, None]]]]


def test_the_arrays_hold_the_routing_and_the_errors() -> None:
    report = sample_report()
    plain, block = data_of(page.make_page([report], WRITTEN))
    for gate, stored in zip(report.gates, plain["runs"][0]["gates"], strict=True):
        assert [name for name, _ in stored["frames"]] == ["start", "epoch 4", ""]
        for (_, reference), choices in zip(stored["frames"], (*gate.film.values(), gate.choices), strict=True):
            np.testing.assert_array_equal(read(block, reference).reshape(choices.shape), choices)
        span = gate.scores.max() - gate.scores.min()
        np.testing.assert_allclose(
            read(block, stored["scores"]).reshape(gate.scores.shape), gate.scores, rtol=0, atol=span / 65534
        )
        # A colour is the sum of what the experts of a pixel add.
        base, added = map(np.array, stored["colourMap"])
        colours = 255.0 * similarity_colours(gate.choices.reshape(-1, *GRID), gate.num_experts).reshape(-1, 3)
        np.testing.assert_allclose(np.clip(base + added[gate.choices].sum(axis=0), 0, 255), colours, atol=0.1)
    error, gain, skill = plain["runs"][0]["errors"][0]["maps"]
    np.testing.assert_allclose(read(block, error["values"]), report.error_maps[0].values.ravel(), rtol=0, atol=2e-5)
    # The plain net has twice the error everywhere: half of it is removed.
    np.testing.assert_allclose(read(block, gain["values"]), 50.0, rtol=0, atol=1e-3)
    np.testing.assert_allclose(read(block, skill["values"]), 75.0, rtol=0, atol=1e-3)
    assert skill["head"] == "Gain over persistence"
    given, truth, predicted, wrong = plain["runs"][0]["examples"][0]["maps"]
    # An input in other units has colours of its own.
    assert (given["low"], given["high"]) == (truth["low"], truth["high"]) == (predicted["low"], predicted["high"])
    other = plain["runs"][0]["examples"][1]["maps"]
    assert other[0]["units"] == "m/s" and other[0]["head"] == "Input: wind"
    np.testing.assert_allclose(read(block, wrong["values"]), report.error_maps[0].values.ravel(), rtol=0, atol=2e-5)


def test_experts_of_another_run_are_paired_with_those_of_the_first() -> None:
    first = sample_report("a")
    order = np.array([2, 0, 3, 1])
    gate = first.gates[0]
    renamed = replace(gate, choices=order[gate.choices].astype(np.int32), use=gate.use[np.argsort(order)])
    plain, _ = data_of(page.make_page([first, replace(first, label="b", gates=(renamed,))], WRITTEN))
    paired = plain["runs"][1]["gates"][0]
    assert [paired["partners"][number] for number in order] == [0, 1, 2, 3]
    assert paired["shared"] == 1.0
    assert plain["runs"][0]["gates"][0]["partners"] is None


def test_a_page_that_is_too_large_has_less_detail(monkeypatch: pytest.MonkeyPatch) -> None:
    places = Places.globe(np.linspace(-89, 89, 60), np.arange(0.0, 360.0, 3.0))
    report = sample_report(places=places, gates=(random_gate(places, 40, 8),), regions=None, error_maps=())
    whole = page.make_page([report], WRITTEN)
    assert data_of(whole)[0]["places"][0]["step"] == 1
    assert len(whole.encode()) < page.MAX_BYTES
    monkeypatch.setattr(page, "MAX_BYTES", len(whole.encode()) * 2 // 3)
    less = page.make_page([report], WRITTEN)
    assert len(less.encode()) < page.MAX_BYTES
    plain = data_of(less)[0]
    assert plain["places"][0]["step"] > 1 and plain["runs"][0]["gates"][0]["numScored"] < 8
    monkeypatch.setattr(page, "MAX_BYTES", 1000)
    with pytest.raises(DataError, match=r"would have 0\.\d MB with the least detail, more than 0\.001 MB: give fewer"):
        page.make_page([report], WRITTEN)


def test_every_third_row_is_every_third_row() -> None:
    places, step = thinned(Places("grid", (7, 10)), 12)
    assert (step, places.shape) == (3, (3, 4))
    values = np.arange(140).reshape(2, 70)
    expected = [[70 * part + 10 * row + column for row in (0, 3, 6) for column in (0, 3, 6, 9)] for part in (0, 1)]
    np.testing.assert_array_equal(take(values, (7, 10), step), expected)
    # The nodes of a mesh are not thinned.
    assert thinned(place_samples()["mesh"], 2)[1] == 1


@pytest.mark.parametrize("kind", place_samples())
def test_every_pixel_is_in_a_picture(kind: str) -> None:
    places = place_samples()[kind]
    report = sample_report(places=places, gates=(random_gate(places),), regions=None, error_maps=())
    for detail in (DETAILS[0], Detail(12, 1, 1, 0)):
        plain, text = page_data([report], detail)
        (stored,) = plain["places"]
        block = gzip.decompress(base64.b64decode(text))
        shown, step = thinned(places, detail.max_pixels)
        assert stored["shape"] == list(shown.shape) and stored["step"] == step
        cells = [read(block, view["cells"]) for view in stored["views"]]
        assert all(len(one) == view["width"] * view["height"] for one, view in zip(cells, stored["views"], strict=True))
        assert set(np.concatenate(cells)) - {0} == set(range(1, shown.num_pixels + 1))
        if shown.rows is not None and shown.rows.values.ndim == 1:
            assert [len(texts) for texts in stored["texts"]] == list(shown.shape)
        elif shown.rows is not None or kind in ("mesh", "flat mesh"):
            assert len(read(block, stored["lines"]).tobytes().split(b"\n")) == shown.num_pixels


def test_dots_of_a_globe_show_the_pixel_that_is_nearest() -> None:
    latitude, longitude = np.array([60.0, 10.0, -20.0, -80.0]), np.arange(5.0, 365.0, 40.0)
    whole, sides, *_ = make_views(Places.globe(latitude, longitude))[0]
    # The middles of the map and of the front are at 0°N 0°E, that of the back is at 0°N 180°E.
    for cells, row, column in ((whole.cells, 180, 360), (sides.cells, 180, 180), (sides.cells, 180, 540)):
        east = 180.0 if column == 540 else 0.0
        away = np.abs((longitude - east + 180.0) % 360.0 - 180.0)
        assert cells[row, column] == 9 * 1 + int(np.argmin(away))
    # Mollweide's map is an equal-area one: a quarter of its dots is north of 14.48°N ... sin = 0.25 of each half.
    shares = np.bincount(whole.cells[whole.cells >= 0] // 9, minlength=4) / (whole.cells >= 0).sum()
    edges = np.sin(np.deg2rad([90.0, 35.0, -5.0, -50.0, -90.0]))
    np.testing.assert_allclose(shares, -np.diff(edges) / 2, atol=0.005)
    # Beyond the rows of a band there is nothing: up to 15 degrees it covers 26 % of a globe.
    band = make_views(Places.globe(np.array([-10.0, -5.0, 0.0, 5.0, 10.0]), longitude))[0][0].cells
    assert (band >= 0).sum() / (whole.cells >= 0).sum() == pytest.approx(np.sin(np.deg2rad(15.0)), abs=0.005)


def test_coasts_are_where_they_are() -> None:
    latitude, longitude = np.arange(35.0, 45.1, 0.5), np.arange(-12.0, 6.1, 0.5)
    (view,), _ = make_views(
        Places("grid", (21, 37), Axis("latitude", latitude), Axis("longitude", longitude), True, is_geographic=True)
    )
    assert view.light is not None
    rows, columns = np.nonzero(view.light < 255)
    north = 45.25 - 10.5 * (rows + 0.5) / view.light.shape[0]
    east = -12.25 + 18.5 * (columns + 0.5) / view.light.shape[1]
    # Cabo da Roca is the western end of the continent; nothing is in the sea west of it, nor inside of Spain.
    assert east.min() == pytest.approx(-9.4, abs=0.2) and np.abs(north[np.argmin(east)] - 38.8) < 0.6
    assert not ((np.abs(north - 40.4) < 1) & (np.abs(east + 4.0) < 2)).any()


@pytest.mark.parametrize(
    "places",
    [
        Places("mesh", (1,), coordinates=np.zeros((1, 2))),
        Places("mesh", (4,), coordinates=np.arange(12.0).reshape(4, 3)),
        Places("grid", (1, 5000)),
        Places("grid", (1, 3), Axis("y", np.zeros(1)), Axis("x", np.arange(3.0))),
    ],
)
def test_narrow_places_have_pictures(places: Places) -> None:
    for view in make_views(places)[0]:
        height, width = view.cells.shape
        assert width < 50 * height
        assert view.cells.max() == places.num_pixels - 1


def test_errors_that_are_all_missing_are_shown() -> None:
    error = ErrorMap("t", "K", np.full(GRID, np.nan), {"plain net": np.full(GRID, np.nan)})
    plain, block = data_of(page.make_page([sample_report(error_maps=(error,))], WRITTEN))
    for shown in plain["runs"][0]["errors"][0]["maps"]:
        assert np.isnan(read(block, shown["values"])).all() and shown["low"] <= shown["high"]


@pytest.mark.parametrize("kind", ["mesh", "flat mesh"])
def test_nodes_are_not_cut_off(kind: str) -> None:
    for view in make_views(place_samples()[kind])[0]:
        assert (np.pad(view.cells[1:-1, 1:-1], 1, constant_values=-1) == view.cells).all()


def test_near_nodes_cover_far_ones() -> None:
    # A sphere: from each side its near half is seen, every dot of it by the node next to it.
    north = np.arcsin(1 - 2 * (np.arange(500) + 0.5) / 500)
    east = np.pi * (1 + 5**0.5) * np.arange(500)
    nodes = np.stack([np.cos(north) * np.cos(east), np.cos(north) * np.sin(east), np.sin(north)], axis=1)
    views = {view.name: view for view in make_views(Places("mesh", (500,), coordinates=nodes))[0]}
    above, below = np.hsplit(views["above and below"].cells, 2)
    middle = slice(60, 300)
    up = np.linspace(1, -1, 360)[middle]
    for cells, side in ((above, 1), (below, -1)):
        inner = cells[middle, middle]
        is_inside = np.hypot(up[:, None], up[None]) < 0.8
        assert (inner[is_inside] >= 0).all() and (side * nodes[inner[is_inside], 2] > 0.3).all()
    assert views["above and below"].light is not None
    assert set(np.concatenate([view.cells.ravel() for view in views.values()])) == set(range(-1, 500))
