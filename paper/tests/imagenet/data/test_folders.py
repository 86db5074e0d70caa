"""Images in folders of classes: reading, listing, and samples of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from torch.utils.data import DataLoader

from image_folders import CLASSES, make_picture, write_folders
from smoe.errors import DataError
from smoe_paper.imagenet.folders import (
    MEAN,
    STD,
    AugmentedFolderImages,
    evaluation_view,
    find_class_folders,
    hold_out,
    normalised,
    read_image,
    training_view,
)
from smoe_paper.imagenet.recipes import Augmentation
from smoe_paper.images.data import ImageSamples


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


PLAIN = Augmentation(trivial_augment=False, erasing=0.0, mixup=0.0, cutmix=0.0)


def test_the_centre_is_cut_out() -> None:
    image = make_picture(0, (50, 30))
    # The shorter side 20, the longer int(20 * 50 / 30) = 33; rows (20 - 16) / 2 = 2, columns round(8.5) = 8.
    expected = np.array(image.resize((33, 20), Image.Resampling.BILINEAR))[2:18, 8:24] / 255.0
    view = evaluation_view(image, 20, 16)
    assert view.shape == (3, 16, 16) and view.dtype == torch.float32
    for channel in range(3):
        theirs = (expected[..., channel] - MEAN[channel]) / STD[channel]
        torch.testing.assert_close(view[channel], torch.from_numpy(theirs).float())


def test_a_training_view_is_a_resized_crop_perhaps_flipped() -> None:
    image = make_picture(2, (40, 40))
    whole = replace(PLAIN, crop_scale=(1.0, 1.0), crop_ratio=(1.0, 1.0))
    resized = normalised(image.resize((16, 16), Image.Resampling.BILINEAR))
    seen = set()
    for seed in range(20):
        view = training_view(np.random.default_rng(seed), image, 16, whole)
        is_plain, is_flipped = torch.equal(view, resized), torch.equal(view, resized.flip(-1))
        assert is_plain or is_flipped
        seen.add(is_plain)
    assert seen == {True, False}
    erased = training_view(np.random.default_rng(0), image, 16, replace(whole, erasing=1.0, flip=0.0))
    assert 0.02 * 0.5 < float((erased == 0).all(dim=0).float().mean()) < 0.4
    changed = training_view(np.random.default_rng(1), image, 16, replace(whole, trivial_augment=True, flip=0.0))
    assert not torch.equal(changed, resized)


def test_views_follow_from_seed_epoch_and_image(tmp_path: Path) -> None:
    images = find_class_folders(write_folders(tmp_path))
    samples = AugmentedFolderImages(images, 16, Augmentation(), seed=3)
    samples.start_epoch(2)
    first, again = (samples.__getitems__([0, 5, 7, 11]) for _ in range(2))
    assert first[0].shape == (4, 3, 16, 16) and first[1].shape == (4, 3)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    # Whatever batch it stands in, a view is the same.
    alone = [samples[index][0] for index in (0, 7, 11)]
    assert torch.equal(samples[7][0], alone[1])
    assert not torch.equal(alone[0], alone[1]) and not torch.equal(alone[1], alone[2])
    assert [int(samples[index][1]) for index in (0, 5)] == [0, 1]
    samples.start_epoch(3)
    assert not torch.equal(samples[0][0], alone[0])
    other = AugmentedFolderImages(images, 16, Augmentation(), seed=4)
    other.start_epoch(2)
    assert not torch.equal(other[0][0], alone[0])


def test_reading_processes_draw_the_same(tmp_path: Path) -> None:
    samples = AugmentedFolderImages(find_class_folders(write_folders(tmp_path)), 8, Augmentation(), seed=0)
    samples.start_epoch(5)
    batches = [[0, 1, 2], [6, 7, 9]]
    loader = DataLoader(samples, batch_sampler=batches, collate_fn=ImageSamples.collate, num_workers=2)
    for (images, shares), indices in zip(loader, batches, strict=True):
        expected = samples.__getitems__(indices)
        assert torch.equal(images, expected[0]) and torch.equal(shares, expected[1])


@pytest.mark.parametrize(
    "options",
    [{"crop_scale": (0.0, 1.0)}, {"crop_ratio": (2.0, 1.0)}, {"flip": 1.5}, {"mixup": -1.0}],
)
def test_options_refuse(options: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Augmentation(**options)


@pytest.mark.parametrize(
    ("mode", "name"),
    [("RGB", "a.JPEG"), ("L", "a.JPEG"), ("CMYK", "a.JPEG"), ("RGBA", "a.png"), ("LA", "a.png"), ("P", "a.png"),
     ("1", "a.png")],
)  # fmt: skip
def test_every_kind_becomes_rgb(tmp_path: Path, mode: str, name: str) -> None:
    picture = make_picture(1).convert(mode)
    picture.save(tmp_path / name)
    with Image.open(tmp_path / name) as stored:
        assert stored.mode == mode
        expected = np.array(stored.convert("RGB"))
    image = read_image(tmp_path / name)
    assert image.mode == "RGB"
    assert np.array_equal(np.array(image), expected)


def test_the_content_decides_and_not_the_name(tmp_path: Path) -> None:
    # One of ImageNet's files is a PNG with the name of a JPEG.
    make_picture(0).save(tmp_path / "a.JPEG", format="PNG")
    assert np.array_equal(np.array(read_image(tmp_path / "a.JPEG")), np.array(make_picture(0)))


@pytest.mark.parametrize("kept", [0, 60, 0.5])
def test_truncated_files_are_refused_by_name(tmp_path: Path, kept: float) -> None:
    make_picture(0).save(tmp_path / "whole.JPEG")
    content = (tmp_path / "whole.JPEG").read_bytes()
    number = kept if isinstance(kept, int) else int(kept * len(content))
    (tmp_path / "cut.JPEG").write_bytes(content[: int(number)])
    with pytest.raises(DataError, match=r"cut.JPEG cannot be read as an image.* fetch it again, or remove it$"):
        read_image(tmp_path / "cut.JPEG")


def test_the_setting_that_hides_truncation_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_picture(0).save(tmp_path / "a.JPEG")
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(DataError, match="LOAD_TRUNCATED_IMAGES is on"):
        read_image(tmp_path / "a.JPEG")


def test_other_refusals(tmp_path: Path) -> None:
    (tmp_path / "page.JPEG").write_text("<html>404 not found</html>")
    with pytest.raises(DataError, match=r"page.JPEG cannot be read as an image"):
        read_image(tmp_path / "page.JPEG")
    Image.fromarray(np.full((4, 4), 40_000, dtype=np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(DataError, match=r"deep.png has pixels of the kind 'I;16'"):
        read_image(tmp_path / "deep.png")
    with pytest.raises(DataError, match=r"gone.JPEG cannot be read as an image .*No such file"):
        read_image(tmp_path / "gone.JPEG")


@pytest.mark.parametrize("format", ["EPS", "GIF", "TIFF"])
def test_other_formats_are_not_opened(tmp_path: Path, format: str) -> None:
    # Pillow decodes EPS by Ghostscript: a file named .JPEG could start a program.
    make_picture(0).save(tmp_path / "a.JPEG", format=format)
    with pytest.raises(DataError, match=r"a.JPEG cannot be read as an image .cannot identify image file"):
        read_image(tmp_path / "a.JPEG")


@pytest.mark.parametrize("share", [0.9, 0.4])
def test_images_with_too_many_pixels_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    # Pillow warns above the limit and raises an error above twice the limit; neither names the file.
    make_picture(0, (40, 30)).save(tmp_path / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", int(share * 40 * 30))
    with pytest.raises(DataError, match=r"large.png cannot be read as an image .*exceeds limit of"):
        read_image(tmp_path / "large.png")
