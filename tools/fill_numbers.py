"""Fills what documents quote of stored tables, between `<!-- numbers: NAME -->` and `<!-- end -->`.

`<!-- table: FILE | FIRST CELL | COLUMNS -->` quotes columns of a table in `paper/results`, found by the first cell of
its header; `FILE#HEADING` begins to look below a heading.

python tools/fill_numbers.py [--check]    (which writes nothing, and fails if a document is out of date)
"""

from __future__ import annotations

import itertools
import json
import re
import statistics
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BENCH, HEAT = ROOT / "paper/results/bench", ROOT / "paper/results/heat/main.md"
_PLACE = re.compile(r"(?<=<!-- numbers: )(\w+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)
_TABLE = re.compile(r"(?<=<!-- table: )(([^|>]+?) \| ([^|>]+?) \|([^>]*?))( -->\n).*?(?=<!-- end -->)", re.DOTALL)
_TASKS = ("one layer", "two layers", "advection", "automaton", "denoising", "no structure")
_STUDENTS = ("convolution", "convolution, equal time", "convolution, local affine", "LRLCN", "default")

_RIVALS = {
    "ridge": "a ridge regression of each pixel",
    "U-Net on simple models": "a U-Net that corrects simple models (one seed)",
    "LightGBM": "LightGBM",
}
_COMPARED = ("damped anomaly", "damped anomaly by hand", "ridge by hand", "SMoE net", "plain net on simple models",
             "mean of all nets", "average of all rows", "average by hand", *_RIVALS)  # fmt: skip

_NAMES = {
    "default": "**SMoE layer, default**",
    "LRLCN": "filters of low rank (LRLCN)",
    "convolution, equal time": "convolution, as wide as takes equal time",
}


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (BENCH / f"{name}.jsonl").read_text().splitlines()]


def real() -> str:
    """Real data: the task of docs/pictures/real.png, and how often the model is ahead."""
    rows = _rows("real")
    shown = next(row for row in rows if row["task"] == "A1B to E1")
    gaps = [(float(row["model - best other"]), float(row["±"]), float(row["model"])) for row in rows]
    best = sum(gap < -spread for gap, spread, _ in gaps)
    behind = sum(gap > 0.01 * (model - gap) for gap, _, model in gaps)
    error = {name: f"{float(shown[name]):.2f}" for name in ("model", *_RIVALS)}
    # By how much the errors of those that every target has are larger than the model's, in %.
    excess = {
        name: 100 * (statistics.geometric_mean(float(row[name]) / float(row["model"]) for row in rows) - 1)
        for name in _COMPARED
        if all(re.fullmatch(r"[\d.]+", str(row.get(name))) for row in rows)
    }
    strongest = min(excess, key=lambda name: excess[name])
    seeds = re.findall(r"(\d+) seed", (BENCH / "real.md").read_text())[0]
    kinds = {str(row["best other row"]).rpartition(" ")[0] for row in rows}
    by_rivals = ", ".join(f"{error[name]} by {words}" for name, words in _RIVALS.items())
    larger = " and ".join(", ".join(f"{excess[name]:.1f}" for name in _RIVALS).rsplit(", ", 1))
    return (
        "Yearly temperatures of North America in one scenario of emissions, predicted from those in another: RMSE "
        f"{error['model']} K by `smoe fit`, {by_rivals}. On most tasks the rows are closer: over {len(rows)} targets "
        f"({seeds} seed{'s' * (seeds != '1')}) the errors of these three are {larger} % larger than those of "
        f"`smoe fit` with default options (geometric mean), those of "
        f"the strongest of all, its own parts included ({strongest}), {abs(excess[strongest]):.1f} % "
        f"{'larger' if excess[strongest] > 0 else 'smaller'}. Which rival is best is known only afterwards "
        f"({len(kinds)} different ones): `smoe fit` is ahead of it on {best} of the {len(rows)}, level on "
        f"{len(rows) - best - behind}, and more than 1 % behind on {behind}."
    )


def learn() -> str:
    """Errors of layers and their rivals at one rate."""
    lines = [f"| layers | {' | '.join(_TASKS)} | time |", "|---" * (len(_TASKS) + 2) + "|"]
    found = _rivals("0.001", _TASKS)
    least = [min(column) for column in zip(*found.values(), strict=True)][1:]
    for student, (time, *errors) in found.items():
        cells = [f"**{each:.2g}**" if each == low else f"{each:.2g}" for each, low in zip(errors, least, strict=True)]
        lines.append(f"| {_NAMES.get(student, student)} | {' | '.join(cells)} | {time:.1f} |")
    return "\n".join(lines)


def evidence() -> str:
    """The same at two rates; the lowest error of a task is bold."""
    tasks = ("two layers", "three layers", "filters only", "classification", *_TASKS[2:4], "shallow water", _TASKS[-1])
    lines = [f"| | time | {' | '.join(tasks)} |", "|---" * (len(tasks) + 2) + "|"]
    for rate, shown in (("0.001", "1e-3"), ("0.01", "1e-2")):
        found = _rivals(rate, tasks)
        least = [min(column) for column in zip(*found.values(), strict=True)][1:]
        for student, (time, *errors) in found.items():
            cells = [f"{error:#.3g}".replace("0.", ".", 1) for error in errors]
            bold = [
                f"**{cell}**" if error == low else cell for cell, error, low in zip(cells, errors, least, strict=True)
            ]
            name = student.removeprefix("convolution, ")
            name = f"**{shown}**: {name}" if student == "convolution" else name
            lines.append(f"| {name} | {time:.1f} | {' | '.join(bold)} |")
    return "\n".join(lines)


def _rivals(rate: str, tasks: tuple[str, ...]) -> dict[str, list[float]]:
    """Processor time over that of the convolution and median errors, by student, after 300 steps of AdamW."""
    rows = [row for row in _rows("learn") if row["block"] == "Rivals" and row["course"] == f"AdamW {rate}, 300 steps"]

    def median(student: str, task: str) -> float:
        return statistics.median(row["error"] for row in rows if (row["student"], row["task"]) == (student, task))

    return {student: [_slowdown(rows, student), *(median(student, task) for task in tasks)] for student in _STUDENTS}


def _slowdown(rows: list[dict[str, Any]], student: str) -> float:
    """Processor time of trainings over that of the convolution, median; of those beside it at one commit, if any."""
    plain = {(row["task"], row["course"], row["seed"]): row for row in rows if row["student"] == "convolution"}
    pairs = [(row, plain[row["task"], row["course"], row["seed"]]) for row in rows if row["student"] == student]
    beside = [pair for pair in pairs if pair[0]["commit"] == pair[1]["commit"]]
    return statistics.median(row["seconds"] / other["seconds"] for row, other in beside or pairs)


def arguments() -> str:
    """Ways to know the place: median errors, and in how many seeds the default is ahead of them."""
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in _rows("learn"):
        if row["block"] == "Five arguments":
            found.setdefault((row["student"], row["course"], row["task"]), {})[row["seed"]] = row["error"]
    courses, tasks = (list(dict.fromkeys(key[place] for key in found)) for place in (1, 2))
    columns = list(itertools.product(courses, tasks))
    heads = [f"{task}, {course.split()[1].rstrip(',')}" for course, task in columns]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(columns) + 1) + "|"]
    for student in dict.fromkeys(key[0] for key in found):
        cells = []
        for column in columns:
            errors, ours = found.get((student, *column), {}), found["default", *column]
            pairs = [(ours[seed], error) for seed, error in errors.items() if seed in ours]
            ahead = sum(default < error for default, error in pairs)
            beside = "" if student == "default" else f" ({ahead} of {len(pairs)})"
            cells.append(f"{statistics.median(errors.values()):.3g}{beside}" if errors else "-")
        lines.append(f"| {student} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _range(ratios: list[float]) -> str:
    return f"{min(ratios):.2f} to {max(ratios):.2f} times (median {statistics.median(ratios):.2f})"


def speed() -> str:
    """Layers beside `nn.Conv2d`."""
    rows = [row for row in _rows("layer") if row["threads"] == 1 and row["routing"] == "random"]
    rows = [row for row in rows if row["dense mixture"] != "-"]  # planes
    steps, frozen = ([float(row[name]) for row in rows] for name in ("default", "smoe.freeze"))
    small = _slowdown([row for row in _rows("learn") if row["block"] == "Rivals"], "default")
    return (
        f"A training step of the default layer takes {_range(steps)} as long as that of `nn.Conv2d` with as many "
        f"outputs, a frozen layer in inference {_range(frozen)}. Trainings of tiny nets (16 x 16 pixels, batches of "
        f"8) take {small:.1f} times as long as with convolutions."
    )


def heat() -> str:
    """The paper's first experiment."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in HEAT.read_text().splitlines() if "|" in line]
    # The first of two columns of one name: the second is of epochs.
    found = [dict(reversed([*zip(cells[0], row, strict=True)])) for row in cells[2:]]
    run = {row["model"]: row for row in reversed(found) if row["here"]}
    names = {"Convolution, not residual": "convolution", "LCN": "filters of each pixel", "LRLCN-ND": "LRLCN-ND"}
    scales = {name: run[name]["scale"] for name in names}
    assert "tiny" not in scales.values()
    here = [f"{words}{'*' * (scales[name] == 'small')} {run[name]['here']} %" for name, words in names.items()]
    smoe = run["SMoE"]
    return (
        f"Heat diffusion, pixels within 1 % of the truth: SMoE with the paper's rule {smoe['here']} % "
        f"({smoe['seeds']} seeds; paper: {smoe['paper']} %); one seed each (*: a quarter of the data): "
        f"{', '.join(here)}."
    )


_WEATHER = {"rmse_z_500": "Z500", "rmse_t_850": "T850", "rmse_t2m": "T2m"}
_DEFAULT = "SMoE, defaults"
_DIGITS = dict(zip(_WEATHER, (0, 2, 2), strict=True))


def rates() -> str:
    """The simulated atmosphere: every network at its best rate, and the default beside it seed by seed."""
    return _forecasts("rates")


def rates_5_days() -> str:
    """The same for a longer lead."""
    return _forecasts("rates-5-days")


def _forecasts(name: str) -> str:
    rates = _by_rate(name)
    # The rate with the least loss of the validation year, mean of its seeds.
    best = {net: min(at, key=lambda rate: _validation(at[rate])) for net, at in rates.items()}
    ours = {run["seed"]: run["test"] for run in rates[_DEFAULT][best[_DEFAULT]]}
    head = ["", "best of the rates", "seeds", *_WEATHER.values(), "seeds in which the default is ahead"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for net, at in rates.items():
        runs = at[best[net]]
        shown = ", ".join(f"**{rate}**" if rate == best[net] else rate for rate in at)
        cells = [_mean_and_spread([run["test"][metric] for run in runs], _DIGITS[metric]) for metric in _WEATHER]
        pairs = [(ours[run["seed"]], run["test"]) for run in runs if run["seed"] in ours]
        ahead = [sum(default[metric] < other[metric] for default, other in pairs) for metric in _WEATHER]
        beside = "" if net == _DEFAULT else f"{', '.join(map(str, ahead))} of {len(pairs)}"
        lines.append(f"| {net} | {shown} | {len(runs)} | {' | '.join(cells)} | {beside} |")
    return "\n".join(lines)


def _mean_and_spread(values: list[float], digits: int) -> str:
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def _validation(runs: list[dict[str, Any]]) -> float:
    return statistics.fmean(min(run["validation"]) for run in runs)


def _by_rate(name: str) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The stored runs of a table, by network and rate."""
    from smoe_paper.experiments.experiment import find_experiment
    from smoe_paper.experiments.stored_runs import RunStore
    from smoe_paper.experiments.tables import outcomes

    tables, store = find_experiment("weather").tables, RunStore(ROOT / "paper/results/weather/runs.jsonl")
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in tables.select(f"weather/{name}")[0].rows:
        for outcome in outcomes(tables, row, store):
            found.setdefault(row.labels[0], {})[row.labels[1]] = outcome.results
    return found


def table(file: str, first: str, columns: str) -> str:
    """Some columns of a stored table, without rows that were not run."""
    file, _, heading = file.partition("#")
    lines = iter(
        (ROOT / "paper/results" / file).read_text().partition(f"## {heading}\n" if heading else "#")[2].splitlines()
    )
    header = next(cells for cells in map(_cells, lines) if cells and cells[0] == first)
    wanted = (
        [0, *(header.index(name.strip()) for name in columns.split(";"))] if columns.strip() else range(len(header))
    )
    next(lines)
    rows = [header, *itertools.takewhile(bool, map(_cells, lines))]
    picked = [[row[number] for number in wanted] for row in rows]
    picked = [row for row in picked if any(row[1:]) and "not run" not in row]
    ruled = [picked[0], ["---"] * len(picked[0]), *picked[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in ruled)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def _wrapped(words: str) -> str:
    # A line that begins with a % would be a comment of the site.
    whole = words.replace(" %", "\xa0%").replace("`smoe fit`", "`smoe\xa0fit`")
    return textwrap.fill(whole, 118, break_on_hyphens=False).replace("\xa0", " ")


FILLERS = {
    "real": real,
    "learn": learn,
    "evidence": evidence,
    "speed": speed,
    "heat": heat,
    "rates": rates,
    "rates_5_days": rates_5_days,
    "arguments": arguments,
}


def fill(text: str) -> str:
    """Return a document with its places filled."""

    def filled(found: re.Match[str]) -> str:
        words = FILLERS[found[1]]()
        return found[1] + found[2] + (words if words.startswith("|") else _wrapped(words)) + "\n"

    def quoted(found: re.Match[str]) -> str:
        return found[1] + found[5] + table(found[2], found[3], found[4]) + "\n"

    return _PLACE.sub(filled, _TABLE.sub(quoted, text))


if __name__ == "__main__":
    old = {path: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}
    stale = {path: new for path, text in old.items() if (new := fill(text)) != text}
    for path, new in stale.items():
        print(path.relative_to(ROOT))
        if "--check" not in sys.argv:
            path.write_text(new)
    sys.exit(bool(stale) and "--check" in sys.argv)
