"""`smoe bench learn`: tasks, students and the stored table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from smoe_paper.benchmarks import learn
from smoe_paper.benchmarks.learn import (
    Block,
    LearnOptions,
    best_errors,
    draw,
    gap_closed,
    measure,
    read_rows,
    run,
    show,
)
from smoe_paper.benchmarks.learn_students import STUDENTS, Candidates, Course, shuffled
from smoe_paper.benchmarks.learn_tasks import GRID, TASKS, make_lesson


@pytest.mark.parametrize("student", STUDENTS)
def test_every_student_has_the_outputs_of_the_task_and_learns(student: str) -> None:
    lesson = make_lesson("two layers", 0, 32)
    torch.manual_seed(0)
    net = STUDENTS[student](lesson)
    output = net(lesson.train.inputs[:3])
    assert output.shape == lesson.train.targets[:3].shape
    lesson.loss(output, lesson.train.targets[:3]).backward()
    assert any(parameter.grad is not None and bool(parameter.grad.any()) for parameter in net.parameters())


@pytest.mark.parametrize("task", TASKS)
def test_test_samples_do_not_depend_on_the_number_of_training_samples(task: str) -> None:
    few, many = (make_lesson(task, 2, number) for number in (16, 40))
    assert len(few.train.inputs) == 16
    for one, other in zip((*few.test, *few.validation), (*many.test, *many.validation), strict=True):
        assert torch.equal(one, other)
    if not few.is_classification and task != "advection, raw":
        assert float(few.test.targets.std()) == pytest.approx(1.0, rel=0.1)


def test_the_regions_explain_one_planted_layer() -> None:
    """The least squares of each region recover the targets."""
    lesson = make_lesson("one layer", 3, 64)
    assert lesson.regions is not None
    patches = nn.functional.unfold(lesson.train.inputs, 3, padding=1)
    for kind in range(3):
        here = (lesson.regions == kind).flatten()
        pixels = patches[:, :, here].transpose(1, 2).flatten(0, 1).double()
        targets = lesson.train.targets.flatten(2)[:, :, here].transpose(1, 2).flatten(0, 1).double()
        solution = torch.linalg.lstsq(pixels, targets, driver="gelsd").solution
        torch.testing.assert_close(pixels @ solution, targets, rtol=1e-3, atol=1e-3)


def test_a_choice_computes_the_chosen_copy() -> None:
    conv = nn.Conv2d(2, 3, 3, padding=1)
    chosen = torch.randint(3, (3, *GRID))
    layer = Candidates(conv, chosen)
    input = torch.randn(2, 2, *GRID)
    torch.testing.assert_close(layer(input), conv(input))
    with torch.no_grad():
        layer.bias.copy_(torch.arange(3.0).repeat(3))
    expected = nn.functional.conv2d(input, conv.weight, padding=1) + chosen
    torch.testing.assert_close(layer(input), expected)


def test_a_shuffled_choice_keeps_the_shares() -> None:
    lesson = make_lesson("two layers", 0, 16)
    taught = STUDENTS["default"](lesson)
    learn.train(taught, lesson, 0, Course(num_steps=30, rate=1e-2))
    net = shuffled(lesson, taught)
    for before, after in zip(taught.convs, net.convs, strict=True):  # type: ignore[arg-type]
        chosen = before.routing().indices.flatten(1) % 2
        assert torch.equal(chosen.sum(dim=1), after[0].chosen.flatten(1).sum(dim=1))


def test_a_converted_network_starts_as_the_trained_one() -> None:
    lesson = make_lesson("advection", 0, 64)
    plain, converted = (
        measure(student, lesson, 0, Course(num_steps=2, rate=0.0), continues=True)
        for student in ("convolution", "default")
    )
    assert converted["error"] == pytest.approx(plain["error"], rel=1e-3)


def test_rows_are_stored_and_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    courses = [Course(rate=rate) for rate in learn.RATES]
    monkeypatch.setattr(learn, "BLOCKS", (Block("Some", ("two layers",), ("convolution", "default"), courses, 1),))
    options = LearnOptions(output=tmp_path / "learn.md", num_seeds=1, num_steps=2)
    text = run(options)
    rows = read_rows(tmp_path / "learn.jsonl")
    assert len(rows) == 6
    assert text.count("| default |") == 4 and "best rate on validation" in text
    assert (tmp_path / "learn.md").read_text() == text
    assert run(options) == text
    assert len(read_rows(tmp_path / "learn.jsonl")) == 6


def test_medians_the_best_rate_and_the_gap() -> None:
    found = {
        ("t", "a", "slow", 512): [{"validation": 0.5, "error": 0.6}],
        ("t", "a", "fast", 512): [{"validation": 0.4, "error": 0.7}],
    }
    assert best_errors(found, "t", "a", 512) == [0.7]
    assert gap_closed([1.0, 0.8, 0.9], [0.1], [0.5]) == pytest.approx(0.5)
    assert gap_closed([1.0], [0.95], [0.5]) is None
    assert show([1.0, 2.0, 3.0]) == "2 (1.5 2.5)"
    assert show([]) == "-"


def test_the_figure_of_the_stored_rows_is_drawn(tmp_path: Path) -> None:
    stored = Path(__file__).parents[2] / "results" / "bench" / "learn.jsonl"
    draw(stored, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 30_000
    draw(tmp_path / "nothing.jsonl", tmp_path / "nothing.png")
    assert not (tmp_path / "nothing.png").exists()
