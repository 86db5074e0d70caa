from __future__ import annotations

from pathlib import Path

import pytest

from image_folders import CLASSES, make_picture, write_folders
from smoe.cli import main


def test_class_folders_that_can_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folders(tmp_path, images_per_class=3)
    write_folders(tmp_path, images_per_class=2, split="val")
    assert main(["data", "check", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "train: 9 images of 3 classes, 3 of each\n" in output
    assert "val: 6 images of 3 classes, 2 of each\n" in output
    assert f"can be used: smoe train imagenet/smoe --data.root {tmp_path}" in output


def test_damage_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folders(tmp_path, images_per_class=3)
    val = write_folders(tmp_path, images_per_class=2, split="val")
    broken = val / CLASSES[1] / f"{CLASSES[1]}_7.JPEG"
    broken.write_bytes(broken.read_bytes()[:-20])
    assert main(["data", "check", str(tmp_path), "--quick"]) == 0
    assert "as far as the names tell" in capsys.readouterr().out
    assert main(["data", "check", str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert f"problem: {broken} cannot be read as an image" in output
    assert "cannot be used" in output.splitlines()[-1]


def test_flat_validation_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folders(tmp_path)
    (tmp_path / "val").mkdir()
    make_picture(0).save(tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG")
    assert main(["data", "check", str(tmp_path)]) == 1
    assert "move each into the folder of its class" in " ".join(capsys.readouterr().out.split())
