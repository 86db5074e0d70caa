"""`smoe bench learn`: tasks, students and the stored table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from smoe_paper.benchmarks.learn import LearnOptions, read_rows, run
from smoe_paper.benchmarks.learn_students import STUDENTS
from smoe_paper.benchmarks.learn_table import gap_closed, show
from smoe_paper.benchmarks.learn_tasks import TASKS, LearningTask, PlantedTask, make_data, make_lesson
from smoe_paper.benchmarks.learn_upcycling import UPCYCLING, measure_upcycling


@pytest.mark.parametrize("student", STUDENTS)
def test_every_student_has_the_output_of_the_teacher_and_learns(student: str) -> None:
    lesson = make_lesson(TASKS["two layers"], 0)
    torch.manual_seed(0)
    net = STUDENTS[student](lesson)
    samples = torch.arange(3)
    output = net(lesson.data.inputs[samples])
    assert output.shape == lesson.data.targets[samples].shape
    lesson.loss(output, samples).backward()
    assert any(parameter.grad is not None and bool(parameter.grad.any()) for parameter in net.parameters())


def test_the_oracle_with_the_filters_of_the_teacher_makes_no_error() -> None:
    """One layer: the least squares of each region recover the targets."""
    data = make_data(PlantedTask(depth=1), 3, num_samples=64, num_test=32)
    patches = torch.nn.functional.unfold(data.inputs, 3, padding=1)
    region = data.region_maps[0][0].flatten()
    for kind in range(3):
        pixels = patches[:, :, region == kind].transpose(1, 2).flatten(0, 1)
        targets = data.targets.flatten(2)[:, :, region == kind].transpose(1, 2).flatten(0, 1)
        solution = torch.linalg.lstsq(pixels.double(), targets.double()).solution
        torch.testing.assert_close(pixels.double() @ solution, targets.double(), rtol=1e-3, atol=1e-3)


def test_scales_and_noise_are_those_of_the_task() -> None:
    plain = make_data(PlantedTask(), 1, num_samples=64, num_test=8)
    scaled = make_data(PlantedTask(input_scale=1e3, target_scale=1e-3), 1, num_samples=64, num_test=8)
    torch.testing.assert_close(scaled.inputs, 1e3 * plain.inputs)
    torch.testing.assert_close(scaled.targets, 1e-3 * plain.targets)
    noisy = make_data(PlantedTask(noise=0.5), 1, num_samples=64, num_test=8)
    assert float((noisy.targets - plain.targets).std()) == pytest.approx(0.5, rel=0.02)
    assert torch.equal(noisy.test_targets, plain.test_targets)


def test_classes_are_the_largest_means() -> None:
    lesson = make_lesson(LearningTask(is_classification=True), 0)
    assert lesson.labels is not None
    use = torch.bincount(lesson.labels[0], minlength=4)
    assert int(use.min()) > 200
    # An output whose means are one-hot for the class makes no error.
    output = torch.nn.functional.one_hot(lesson.labels[1], 4).float()[:, :, None, None].expand(-1, -1, 24, 32)
    assert lesson.error(output) == 0.0


def test_rows_are_stored_and_not_measured_again(tmp_path: Path) -> None:
    options = LearnOptions(names=("white",), output=tmp_path / "learn.md", num_seeds=1, num_steps=2)
    said: list[str] = []
    text = run(options, said.append)
    rows = read_rows(tmp_path / "learn.jsonl")
    assert len(said) == len(rows) == 5
    assert "| SMoE, default |" in text
    assert (tmp_path / "learn.md").read_text() == text
    assert run(options, said.append) == text
    assert len(said) == 5


def test_an_upcycled_network_computes_what_the_trained_one_computed() -> None:
    rows = {row["student"]: row["error"] for row in measure_upcycling(next(iter(UPCYCLING)), 0, 3)}
    assert rows["trained, then upcycled, 0"] == pytest.approx(rows["trained"], rel=1e-5)
    assert rows["trained, then upcycled, 20"] != rows["trained, then plain, 20"]


def test_the_gap_and_the_spread() -> None:
    errors = {("t", "convolution"): [1.0, 0.8], ("t", "SMoE, oracle gate"): [0.1], ("t", "a"): [0.5]}
    assert gap_closed(errors, "t", "a") == pytest.approx([0.5])
    assert gap_closed(errors, "u", "a") == []
    assert show([0.5]) == "0.5"
    assert show([0.4, 0.6]) == "0.5 ± 0.1"
    assert show([]) == "-"
