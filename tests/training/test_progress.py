from __future__ import annotations

import pytest

from smoe.training.progress import BarReporter, ProgressBar

RECORD = {"epoch": 2, "validation/mse": 0.5, "train/loss": 0.25, "learning_rate": 1e-3, "seconds": 1.5}


def test_a_log_file_has_lines_and_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with BarReporter("mse") as reporter:
        reporter.begin_epoch(2, 10, 3)
        reporter.step(0.5)
        reporter.end_epoch(RECORD, is_best=True)
    assert capsys.readouterr().err == "epoch   2  mse   0.5000 *  train loss 2.500e-01  lr 1.0e-03  1.5 s\n"
    with BarReporter("mse", is_quiet=True) as quiet:
        quiet.notify("nothing")
    assert capsys.readouterr().err == ""


def test_a_bar_counts_and_starts_anew_with_another_part() -> None:
    bar = ProgressBar()
    (task,) = bar._bar.tasks
    bar.begin(10, 3, "epoch 1")
    bar.advance()
    assert (task.completed, task.total, task.description, task.visible) == (4, 10, "epoch 1", True)
    bar.advance("epoch 1, loss 0.5")
    assert (task.completed, task.description) == (5, "epoch 1, loss 0.5")
    bar.show(7, 10, "reading")
    bar.show(1, 20, "scoring")
    assert (task.completed, task.total, task.description) == (1, 20, "scoring")
