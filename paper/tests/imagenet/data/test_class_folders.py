from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from image_folders import CLASSES, make_picture, write_folders
from smoe.errors import DataError
from smoe_paper.imagenet.folders import find_class_folders, hold_out


def test_classes_and_images_are_sorted(tmp_path: Path) -> None:
    folder = write_folders(tmp_path, images_per_class=4)
    (folder / ".DS_Store").write_bytes(b"x")
    (folder / CLASSES[0] / "._hidden.JPEG").write_bytes(b"x")
    images = find_class_folders(folder)
    assert images.classes == CLASSES
    assert images.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert [images.path(index).name for index in range(4)] == [f"n01440764_{number}.JPEG" for number in (0, 10, 3, 7)]
    assert all(images.path(index).is_file() for index in range(len(images)))
    assert find_class_folders(folder, classes=CLASSES).classes == CLASSES


def test_some_images_of_each_class_are_held_out(tmp_path: Path) -> None:
    images = find_class_folders(write_folders(tmp_path, images_per_class=4))
    kept, held = hold_out(images, 1)
    assert kept.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert held.labels.tolist() == [0, 1, 2]
    paths = [part.path(index) for part in (kept, held) for index in range(len(part))]
    assert sorted(paths) == sorted(images.path(index) for index in range(len(images)))
    assert held.path(0).name == "n01440764_0.JPEG"
    with pytest.raises(DataError, match=r"n01440764 has 4 images, of which 4 are to be held out"):
        hold_out(images, 4)
    everything, nothing = hold_out(images, 0)
    assert len(everything) == 12 and len(nothing) == 0
    assert np.array_equal(everything.names, images.names)


def test_refusals(tmp_path: Path) -> None:
    def refused(text: str, **options: tuple[str, ...]) -> None:
        with pytest.raises(DataError, match=text):
            find_class_folders(tmp_path / "train", **options)

    refused("train holds 0 folders: it is to hold a folder for each class")
    folder = write_folders(tmp_path)
    refused("n02102040, n9 differ", classes=(*CLASSES[:2], "n9"))
    (folder / "n02102041").mkdir()
    refused("n02102041 holds no image")
    (folder / "n02102041" / "boxes.txt").write_text("x")
    refused("n02102041 holds boxes.txt: a class has images named .jpeg")
    make_picture(0).save(folder / "lost.JPEG")
    refused("holds 4 folders beside lost.JPEG.* LOC_val_solution.csv names their classes")
