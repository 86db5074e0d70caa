"""The page in a real Chromium: it opens without errors and requests, and its controls work."""

from __future__ import annotations

import base64
import csv
import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest

from chromium import Browser, find_chromium
from sample_reports import GRID, place_samples, random_gate, sample_report
from smoe.reports._page import write_page
from smoe.reports.run_report import ErrorMap, RunReport

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="no Chromium was found: apt-get install chromium")

EVIL = "<script>document.title = 'hacked'</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture(autouse=True)
def _is_quiet(browser: Browser) -> Iterator[None]:
    browser.errors.clear()
    browser.requests.clear()
    yield
    browser.evaluate("1")
    assert browser.errors == []
    assert browser.requests == []


def open_page(browser: Browser, folder: Path, *reports: RunReport) -> None:
    write_page(reports, folder / "report.html")
    browser.open(folder / "report.html")


def picture(browser: Browser, selector: str) -> str:
    """All dots of the first picture inside of an element."""
    return browser.evaluate(f"document.querySelector({json.dumps(selector + ' canvas')}).toDataURL()")


def set_value(browser: Browser, selector: str, value: object, event: str) -> None:
    control = f"document.querySelector({json.dumps(selector)})"
    browser.evaluate(f"{control}.value = {json.dumps(value)}")
    browser.evaluate(f"{control}.dispatchEvent(new Event({json.dumps(event)}, {{ bubbles: true }}))")


def tip(browser: Browser) -> list[str]:
    return browser.evaluate(
        "[...document.querySelectorAll('#tip:not([hidden]) > div')].map((line) => line.textContent)"
    )


def point_at(browser: Browser, selector: str, x: float, y: float) -> list[str]:
    """Lines of the box beside the pointer at a share of the width and height of an element."""
    place = f"document.querySelector({json.dumps(selector)})"
    browser.evaluate(f"{place}.scrollIntoView({{ block: 'center', behavior: 'instant' }})")
    box = browser.evaluate(
        f"(() => {{ const box = {place}.getBoundingClientRect(); return [box.x, box.y, box.width, box.height]; }})()"
    )
    browser.move(box[0] + x * box[2], box[1] + y * box[3])
    return tip(browser)


def test_sliders_over_layers_and_experts_change_the_picture(browser: Browser, tmp_path: Path) -> None:
    open_page(browser, tmp_path, sample_report())
    seen = [picture(browser, "#run-0-routing")]
    layer, expert = "#run-0-routing .control:nth-child(1) input", "#run-0-routing .control:nth-child(3) input"
    set_value(browser, layer, 1, "input")
    seen.append(picture(browser, "#run-0-routing"))
    assert (
        browser.evaluate(f"document.querySelector({json.dumps(layer)}).getAttribute('aria-valuetext')") == "2: second"
    )
    for number in (0, 1):
        set_value(browser, expert, number, "input")
        seen.append(picture(browser, "#run-0-routing"))
    assert browser.evaluate("document.querySelector('#run-0-routing select').value") == "one"
    set_value(browser, "#run-0-routing select", "first", "change")
    seen.append(picture(browser, "#run-0-routing"))
    # One of few experts at each pixel has its colour in both modes.
    assert seen[-1] == seen[1] and len(set(seen)) == 4
    # The bank of the second layer has three experts, that of the first one four.
    assert browser.evaluate(f"document.querySelector({json.dumps(expert)}).max") == "2"
    set_value(browser, layer, 0, "input")
    assert browser.evaluate(f"document.querySelector({json.dumps(expert)}).max") == "3"


def test_a_slider_over_epochs_shows_the_routing_as_it_was(browser: Browser, tmp_path: Path) -> None:
    report = sample_report()
    open_page(browser, tmp_path, report)
    film, name = "#run-0-routing .control:nth-child(5)", "document.querySelectorAll('#run-0-routing output')[3]"
    shown = [picture(browser, "#run-0-routing")]
    for frame, text in ((0, "start"), (1, "epoch 4"), (2, "the weights shown here")):
        set_value(browser, f"{film} input", frame, "input")
        assert browser.evaluate(f"{name}.textContent") == text
        shown.append(picture(browser, "#run-0-routing"))
        lines = point_at(browser, "#run-0-routing canvas", 0.5 / GRID[1], 0.5 / GRID[0])
        if frame == 0:
            first = report.gates[0].film["start"][:, 0]
            assert lines[1:3] == [f"expert {expert}" for expert in first]
    # Epoch 4 has the choices of the weights that are shown.
    assert shown[0] == shown[2] == shown[3] != shown[1]
    # Which choice is the first one is known of these weights only.
    set_value(browser, "#run-0-routing select", "first", "change")
    assert browser.evaluate(f"document.querySelector('{film}').hidden")


def saved(browser: Browser, selector: str) -> str:
    """The address of what a button saves, whose name says what it is."""
    browser.evaluate("window.links = []; HTMLAnchorElement.prototype.click = function () { links.push(this) }")
    browser.evaluate(f"document.querySelector({json.dumps(selector)}).click()")
    assert browser.evaluate("/^[\\w-]+[.](png|svg|csv)$/.test(links[0].download)")
    return browser.evaluate("links[0].href")


def test_pictures_charts_and_tables_are_saved(browser: Browser, tmp_path: Path) -> None:
    open_page(browser, tmp_path, sample_report())
    image = base64.b64decode(saved(browser, "#run-0-routing .save").removeprefix("data:image/png;base64,"))
    # 7 x 5 pixels, at least 1,000 wide, above the legend.
    assert struct.unpack(">II", image[16:24]) == (1001, 715 + 90)
    chart = unquote(saved(browser, "#run-0-curves .save").removeprefix("data:image/svg+xml,"))
    assert ElementTree.fromstring(chart).tag == "{http://www.w3.org/2000/svg}svg" and "<style>" in chart
    assert ">train/loss</text>" in chart
    table = unquote(saved(browser, "#run-0-scores table .save").removeprefix("data:text/csv;charset=utf-8,"))
    assert list(csv.reader(table.splitlines()))[:2] == [
        ["prediction", "mse", "source"], ["heat/smoe", "1", "this run"]
    ]  # fmt: skip


def test_errors_by_month_and_reliability_are_charts(browser: Browser, tmp_path: Path) -> None:
    open_page(browser, tmp_path, sample_report())
    assert point_at(browser, "#run-0-parts svg", 0.99, 0.5) == ["month 7", "this run: 2 K", "conv: 3 K"]
    assert point_at(browser, "#run-0-reliability svg", 0.01, 0.5) == ["quantile, % 10", "this run: 12 %"]
    set_value(browser, "#run-0-parts select", "1", "change")
    lines = point_at(browser, "#run-0-parts svg", 0.99, 0.5)
    assert lines[0] == "region lower right"
    error = sample_report().error_maps[0].values[3:, 4:]
    assert float(lines[1].removeprefix("this run: ").removesuffix(" K")) == pytest.approx(
        np.sqrt(np.square(error).mean()), rel=1e-4
    )


def test_pointing_at_a_pixel_shows_its_place_experts_and_scores(browser: Browser, tmp_path: Path) -> None:
    report = sample_report()
    open_page(browser, tmp_path, report)
    gate = report.gates[0]
    for row, column in ((0, 0), (3, 5), (4, 6)):
        lines = point_at(browser, "#run-0-routing canvas", (column + 0.5) / GRID[1], (row + 0.5) / GRID[0])
        pixel = row * GRID[1] + column
        assert lines[0] == f"row {row}, column {column}"
        for rank, line in enumerate(lines[1:3]):
            name, score = line.split(": score ")
            assert name == f"expert {gate.choices[rank, pixel]}"
            assert float(score) == pytest.approx(float(gate.scores[rank, pixel]), abs=6e-4)
        assert lines[3] == f"known region {pixel % 3}"


def test_arrow_keys_move_over_the_pixels_and_speak(browser: Browser, tmp_path: Path) -> None:
    open_page(browser, tmp_path, sample_report())
    browser.evaluate("document.querySelector('#run-0-routing canvas').focus()")
    said = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        browser.press(key)
        said.append(browser.evaluate("document.getElementById('live').textContent").split(", expert")[0])
    assert said == ["row 2, column 3", "row 2, column 4", "row 3, column 4"]


def test_one_expert_at_each_pixel_has_the_colour_of_its_bar(browser: Browser, tmp_path: Path) -> None:
    places = place_samples()["projected"]
    open_page(browser, tmp_path, sample_report(places=places, gates=(random_gate(places, 3, 1),), error_maps=()))
    options = "[...document.querySelectorAll('#run-0-routing select option')].map((one) => one.value)"
    assert browser.evaluate(options) == ["first", "one"]
    legend = "[...document.querySelectorAll('#run-0-routing .legend path')].map((one) => one.getAttribute('stroke'))"
    bars = "[...document.querySelectorAll('#run-0-use i')].map((one) => one.style.background)"
    in_bars = {colour.replace(",", "") for colour in browser.evaluate(bars)}
    assert set(browser.evaluate(legend)) == in_bars and len(in_bars) == 3


def test_keys_choose_an_expert(browser: Browser, tmp_path: Path) -> None:
    report = sample_report()
    open_page(browser, tmp_path, report)
    order = np.argsort(-report.gates[0].use, kind="stable")
    for part in ("use", "filters"):
        browser.evaluate(f"document.querySelectorAll('#run-0-{part} [data-expert]')[1].click()")
        assert browser.evaluate("document.querySelector('#run-0-routing select').value") == "one"
        chosen = "document.querySelectorAll('#run-0-routing output')[1].textContent"
        assert browser.evaluate(chosen) == f"expert {order[1]}"
        set_value(browser, "#run-0-routing select", "all", "change")
    # The second layer has experts of its own.
    set_value(browser, "#run-0-routing .control:nth-child(1) input", 1, "input")
    seen = "[...document.querySelectorAll('#run-0-use [data-gate]')].map((one) => one.hidden)"
    assert browser.evaluate(seen) == [True, False]


def test_the_gain_over_the_plain_net_is_beside_the_error(browser: Browser, tmp_path: Path) -> None:
    report = sample_report()
    without = replace(report.error_maps[0], name="humidity, RMSE", others={})
    open_page(browser, tmp_path, replace(report, error_maps=(*report.error_maps, without)))
    shown = "[...document.querySelectorAll('#run-0-errors figure')].filter((one) => !one.hidden).length"
    assert browser.evaluate(shown) == 3
    lines = point_at(browser, "#run-0-errors figure:nth-child(2) canvas", 0.5 / GRID[1], 0.5 / GRID[0])
    error = float(report.error_maps[0].values[0, 0])
    assert lines[0] == "row 0, column 0"
    assert float(lines[1].removeprefix("temperature, RMSE: ").removesuffix(" K")) == pytest.approx(error, rel=1e-3)
    # The error of the plain net is twice as large at every pixel.
    assert lines[2:] == ["gain over conv: 50 %", "gain over persistence: 75 %"]
    captions = browser.evaluate("document.querySelector('#run-0-errors figure:nth-child(2) figcaption').textContent")
    assert "better at 100 % of the pixels; the median gain is 50 %" in captions
    set_value(browser, "#run-0-errors input", 1, "input")
    assert browser.evaluate(shown) == 1


def test_examples_show_input_truth_and_prediction(browser: Browser, tmp_path: Path) -> None:
    report = sample_report()
    open_page(browser, tmp_path, report)
    heads = "[...document.querySelectorAll('#run-0-examples figure strong')].map((one) => one.textContent)"
    assert browser.evaluate(heads) == ["Input: temperature", "Truth", "Prediction", "Prediction minus truth"]
    lines = point_at(browser, "#run-0-examples figure:nth-child(3) canvas", 0.5 / GRID[1], 0.5 / GRID[0])
    assert float(lines[3].removeprefix("prediction: ").removesuffix(" K")) == pytest.approx(
        3.0 * float(report.error_maps[0].values[0, 0]), rel=1e-3
    )
    set_value(browser, "#run-0-examples input", 1, "input")
    assert browser.evaluate(heads)[0] == "Input: wind"


def test_pointing_at_a_curve_shows_its_values(browser: Browser, tmp_path: Path) -> None:
    open_page(browser, tmp_path, sample_report())
    assert point_at(browser, "#run-0-curves svg", 0.99, 0.5) == ["epoch 3", "train/loss: 1", "validation/loss: 1.5"]
    # Epoch 2 has no validation.
    assert point_at(browser, "#run-0-curves svg", 0.53, 0.5) == ["epoch 2", "train/loss: 2"]
    browser.evaluate("document.querySelector('#run-0-curves .numbers').open = true")
    browser.wait("document.querySelectorAll('#run-0-curves .numbers tbody tr').length === 3")
    row = "[...document.querySelectorAll('#run-0-curves .numbers tbody tr')[1].cells].map((cell) => cell.textContent)"
    assert browser.evaluate(row) == ["2", "2", "none"]


def test_the_table_of_several_runs_sorts(browser: Browser, tmp_path: Path) -> None:
    runs = [sample_report(label, seed) for label, seed in (("a", 1), ("b", 10), ("c", 2))]
    unscored = replace(runs[2], label="d", scores=replace(runs[2].scores, rows=()))
    open_page(browser, tmp_path, *runs, unscored)
    order = "[...document.querySelectorAll('#table tbody th')].map((cell) => cell.textContent)"
    heads = browser.evaluate("[...document.querySelectorAll('#table thead th')].map((cell) => cell.textContent)")
    click = f"document.querySelectorAll('#table thead button')[{heads.index('mse')}].click()"
    for expected, direction in ((["a", "c", "b", "d"], "ascending"), (["b", "c", "a", "d"], "descending")):
        browser.evaluate(click)
        assert browser.evaluate(order) == expected
        sorting = f"document.querySelectorAll('#table thead th')[{heads.index('mse')}].getAttribute('aria-sort')"
        assert browser.evaluate(sorting) == direction


def test_several_runs_stand_side_by_side(browser: Browser, tmp_path: Path) -> None:
    open_page(browser, tmp_path, sample_report("a", 0), sample_report("b", 0), sample_report("c", 5))
    # The known regions stand beside them.
    assert browser.evaluate("document.querySelectorAll('#beside canvas').length") == 4
    captions = browser.evaluate("[...document.querySelectorAll('#beside figcaption')].map((one) => one.textContent)")
    assert "100 % of the choices as in a" in captions[1]
    assert "100 % of the choices" not in captions[2]
    assert len(browser.evaluate("[...document.querySelectorAll('#together .legend-entry')]")) == 3
    # A run is filled when it is opened.
    assert browser.evaluate("document.querySelectorAll('#run-1 canvas').length") == 0
    browser.evaluate("document.querySelector('#run-1 details').open = true")
    browser.wait("document.querySelectorAll('#run-1 canvas').length === 9")


@pytest.mark.parametrize("kind", place_samples())
def test_every_kind_of_places_is_drawn(browser: Browser, tmp_path: Path, kind: str) -> None:
    places = place_samples()[kind]
    error = ErrorMap("error", "K", random_gate(places, seed=3).scores[0].reshape(places.shape))
    gates = (random_gate(places),)
    open_page(browser, tmp_path, sample_report(places=places, gates=gates, regions=None, error_maps=(error,)))
    empty = (
        "(() => {{ const made = document.createElement('canvas'); const one = document.querySelector('{0} canvas'); "
    )
    empty += "[made.width, made.height] = [one.width, one.height]; return made.toDataURL(); }})()"
    for part in ("#run-0-routing", "#run-0-errors"):
        assert picture(browser, part) != browser.evaluate(empty.format(part))
    lines = point_at(browser, "#run-0-routing canvas", 0.55, 0.49)
    expected = {
        # Row 5 is at 7.5 degrees south, row 6 at 7.5 degrees north; the middle of the map is at Greenwich.
        "globe": "7.5°N 15°E (row 6, column 1)",
        "region": "°N",
        "pixels": "°N",
        "projected": "km",
        "line": "pixel",
        "volume": "voxel 1, ",
        "mesh": "node ",
        "flat mesh": "node ",
    }[kind]
    assert expected in lines[0]
    assert lines[1].startswith("expert ") and "score" in lines[1]


def test_a_map_whose_first_row_is_in_the_south_has_it_below(browser: Browser, tmp_path: Path) -> None:
    places = place_samples()["projected"]
    open_page(browser, tmp_path, sample_report(places=places, gates=(random_gate(places),), error_maps=()))
    assert point_at(browser, "#run-0-routing canvas", 0.99, 0.02)[0] == "y 3 km, x 5 km (row 3, column 5)"
    assert point_at(browser, "#run-0-routing canvas", 0.1, 0.9)[0] == "y 0 km, x 0 km (row 0, column 0)"


def test_a_globe_is_seen_from_all_sides(browser: Browser, tmp_path: Path) -> None:
    places = place_samples()["globe"]
    open_page(browser, tmp_path, sample_report(places=places, gates=(random_gate(places),), error_maps=()))
    seen, view = [picture(browser, "#run-0-routing")], "#run-0-routing .control:nth-child(4) input"
    # The middle of the left half is the place that is seen from above; that of the right half is opposite.
    for number, left, right in ((1, " 0°", "180°"), (2, "90°E", "90°W"), (3, "82.5°N", "82.5°S")):
        set_value(browser, view, number, "input")
        seen.append(picture(browser, "#run-0-routing"))
        assert left in point_at(browser, "#run-0-routing canvas", 0.25, 0.501)[0]
        assert right in point_at(browser, "#run-0-routing canvas", 0.75, 0.501)[0]
    assert len(set(seen)) == 4


def test_a_run_named_like_a_script_does_no_harm(browser: Browser, tmp_path: Path) -> None:
    first = sample_report(EVIL, title=EVIL, recipe={EVIL: EVIL}, facts={EVIL: EVIL}, command=EVIL, remarks=(EVIL,))
    gates = tuple(replace(gate, layers=(EVIL,), rule=EVIL) for gate in first.gates)
    rows = tuple(replace(row, name=EVIL, source=EVIL) for row in first.scores.rows)
    errors = tuple(replace(error, name=EVIL, units=EVIL, others={EVIL: error.values}) for error in first.error_maps)
    history = [{**record, EVIL: 1.0, "stopped": EVIL} if "stopped" in record else record for record in first.history]
    evil = replace(first, gates=gates, scores=replace(first.scores, rows=rows), error_maps=errors, history=history)
    for reports in ((evil,), (evil, sample_report())):
        open_page(browser, tmp_path, *reports)
        browser.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        point_at(browser, "#content canvas", 0.5, 0.5)
        assert browser.evaluate("document.querySelectorAll('script').length") == 3
        assert "hacked" not in browser.evaluate("document.title").split("document.title")[0]
        assert browser.evaluate("document.title") != "hacked"
        assert browser.evaluate("document.body.textContent").count(EVIL) > 3


@pytest.mark.parametrize("width", [360, 1400])
def test_nothing_is_wider_than_the_window(browser: Browser, tmp_path: Path, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    try:
        for reports in ((sample_report(),), (sample_report("a"), sample_report("b" * 80, 1))):
            open_page(browser, tmp_path, *reports)
            browser.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
            browser.wait("document.querySelectorAll('svg').length > 2")
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
    finally:
        browser.call("Emulation.setDeviceMetricsOverride", width=1200, height=900, deviceScaleFactor=1, mobile=False)


def test_dark_and_light(browser: Browser, tmp_path: Path) -> None:
    places = place_samples()["projected"]
    open_page(browser, tmp_path, sample_report(places=places, gates=(random_gate(places),), error_maps=()))
    back = "getComputedStyle(document.body).backgroundColor"
    # Numbers beside a picture are as dark or light as other text.
    tick = "getComputedStyle(document.querySelector('.field span')).color"
    assert (browser.evaluate(back), browser.evaluate(tick)) == ("rgb(255, 255, 255)", "rgb(89, 98, 109)")
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.call("Emulation.setEmulatedMedia", media="", features=dark)
    assert (browser.evaluate(back), browser.evaluate(tick)) == ("rgb(20, 23, 27)", "rgb(163, 173, 184)")
    browser.call("Emulation.setEmulatedMedia", media="print", features=dark)
    assert (browser.evaluate(back), browser.evaluate(tick)) == ("rgb(255, 255, 255)", "rgb(89, 98, 109)")
    assert browser.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    browser.call("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": "light"}])


def test_all_runs_are_printed(browser: Browser, tmp_path: Path) -> None:
    open_page(browser, tmp_path, sample_report("a"), sample_report("b", 1))
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    for number in (0, 1):
        assert browser.evaluate(f"document.querySelectorAll('#run-{number} canvas').length") == 9


def test_everything_that_acts_has_a_name(browser: Browser, tmp_path: Path) -> None:
    open_page(browser, tmp_path, sample_report(), sample_report("second", 1))
    browser.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    browser.wait("document.querySelectorAll('#run-1 canvas').length === 9")
    unnamed = browser.evaluate(
        """[...document.querySelectorAll("button, select, input, canvas, svg[tabindex], a")].filter((one) => {
          const label = one.getAttribute("aria-label") || one.textContent.trim() || (one.labels && one.labels.length);
          return !label || one.tabIndex < 0;
        }).map((one) => one.outerHTML.slice(0, 80))"""
    )
    assert unnamed == []
    landmarks = browser.evaluate("[...document.querySelectorAll('section')].map((one) => one.ariaLabel)")
    named = [label for label in landmarks if label]
    assert len(set(named)) == len(named) >= 14
    identifiers = browser.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(set(identifiers)) == len(identifiers)
