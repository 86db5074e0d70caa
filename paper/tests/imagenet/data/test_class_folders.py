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


def test_names_are_whatever_the_disk_holds(tmp_path: Path) -> None:
    folder = write_folders(tmp_path, images_per_class=1, classes=("Eichhörnchen", "chat noir"))
    make_picture(0).save(folder / "chat noir" / "été 1.PNG")
    images = find_class_folders(folder)
    assert images.classes == ("Eichhörnchen", "chat noir")
    assert [images.path(index).name for index in (1, 2)] == ["chat noir_0.JPEG", "été 1.PNG"]
    assert images.path(2).is_file()


def test_some_images_of_each_class_are_held_out(tmp_path: Path) -> None:
    images = find_class_folders(write_folders(tmp_path, images_per_class=4))
    kept, held = hold_out(images, 1)
    assert kept.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert held.labels.tolist() == [0, 1, 2]
    paths = [part.path(index) for part in (kept, held) for index in range(len(part))]
    assert sorted(paths) == sorted(images.path(index) for index in range(len(images)))
    assert held.path(0).name == "n01440764_0.JPEG"
    with pytest.raises(DataError, match=r"3 classes \(n01440764, n01443537, n02102040\) of 4 images or fewer"):
        hold_out(images, 4)
    everything, nothing = hold_out(images, 0)
    assert len(everything) == 12 and len(nothing) == 0
    assert np.array_equal(everything.names, images.names)


def test_validation_images_without_folders(tmp_path: Path) -> None:
    for number in range(3):
        make_picture(number).save(tmp_path / f"ILSVRC2012_val_0000000{number}.JPEG")
    with pytest.raises(DataError, match=r"holds 3 images and no class folders.*LOC_val_solution.csv"):
        find_class_folders(tmp_path)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no folder .*nowhere: it is to hold a folder for each class"):
        find_class_folders(tmp_path / "nowhere")
    with pytest.raises(DataError, match="has no class folders"):
        find_class_folders(tmp_path)
    folder = write_folders(tmp_path)
    with pytest.raises(DataError, match=r"2 classes \(n02102040, n9\) differ"):
        find_class_folders(folder, classes=(*CLASSES[:2], "n9"))
    (folder / "n02102041").mkdir()
    with pytest.raises(DataError, match=r"1 class folder \(n02102041\) without images"):
        find_class_folders(folder)
    (folder / "n02102041" / "boxes.txt").write_text("x")
    with pytest.raises(DataError, match=r"boxes.txt is not an image by its extension"):
        find_class_folders(folder)
    (folder / "n02102041" / "boxes.txt").unlink()
    (folder / "n02102041" / "images").mkdir()
    with pytest.raises(DataError, match=r"images is a folder inside a class"):
        find_class_folders(folder)
    (folder / "n02102041" / "images").rmdir()
    (folder / "n02102041").rmdir()
    make_picture(0).save(folder / "lost.JPEG")
    with pytest.raises(DataError, match=r"holds 1 image \(lost.JPEG\) beside its class folders"):
        find_class_folders(folder)
