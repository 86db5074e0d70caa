"""Images in folders of classes: reading, listing, augmentation, and samples of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageFile
from torch.utils.data import DataLoader

from image_folders import CLASSES, make_picture, write_folders
from smoe.errors import DataError
from smoe_paper.imagenet.folders import (
    MEAN,
    OPERATIONS,
    STD,
    AugmentedFolderImages,
    change,
    draw_crop,
    draw_operation,
    erase,
    evaluation_view,
    find_class_folders,
    hold_out,
    mix,
    read_image,
)
from smoe_paper.images.data import ImageSamples


def test_classes_and_images_are_sorted_and_some_held_out(tmp_path: Path) -> None:
    folder = write_folders(tmp_path, images_per_class=4)
    (folder / ".DS_Store").write_bytes(b"x")
    (folder / CLASSES[0] / "._hidden.JPEG").write_bytes(b"x")
    images = find_class_folders(folder, classes=CLASSES)
    assert images.classes == CLASSES
    assert images.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert [images.path(index).name for index in range(4)] == [f"n01440764_{number}.JPEG" for number in (0, 10, 3, 7)]
    assert all(images.path(index).is_file() for index in range(len(images)))
    kept, held = hold_out(images, 1)
    assert kept.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2] and held.labels.tolist() == [0, 1, 2]
    paths = [part.path(index) for part in (kept, held) for index in range(len(part))]
    assert sorted(paths) == sorted(images.path(index) for index in range(len(images)))
    assert held.path(0).name == "n01440764_0.JPEG"
    with pytest.raises(DataError, match=r"n01440764 has 4 images, of which 4 are to be held out"):
        hold_out(images, 4)


def test_folders_that_are_refused(tmp_path: Path) -> None:
    def refused(text: str, **options: tuple[str, ...]) -> None:
        with pytest.raises(DataError, match=text):
            find_class_folders(tmp_path / "train", **options)

    refused("train holds no folder: it is to hold a folder for each class")
    folder = write_folders(tmp_path)
    refused("n02102040, n9 differ", classes=(*CLASSES[:2], "n9"))
    (folder / "n02102041").mkdir()
    refused("n02102041 holds no image")
    (folder / "n02102041" / "boxes.txt").write_text("x")
    refused("n02102041 holds boxes.txt: a class has images named .jpeg")
    make_picture(0).save(folder / "lost.JPEG")
    refused("holds lost.JPEG.* LOC_val_solution.csv names their classes")


def test_the_centre_is_cut_out() -> None:
    image = make_picture(0, (50, 30))
    # The shorter side 20, the longer int(20 * 50 / 30) = 33; rows (20 - 16) / 2 = 2, columns round(8.5) = 8.
    expected = np.array(image.resize((33, 20), Image.Resampling.BILINEAR))[2:18, 8:24] / 255.0
    view = evaluation_view(image, 20, 16)
    assert view.shape == (3, 16, 16) and view.dtype == torch.float32
    for channel in range(3):
        theirs = (expected[..., channel] - MEAN[channel]) / STD[channel]
        torch.testing.assert_close(view[channel], torch.from_numpy(theirs).float())


def test_views_follow_from_seed_epoch_and_image(tmp_path: Path) -> None:
    images = find_class_folders(write_folders(tmp_path))
    samples = AugmentedFolderImages(images, 16, seed=3)
    samples.start_epoch(2)
    first, again = (samples.__getitems__([0, 5, 7, 11]) for _ in range(2))
    assert first[0].shape == (4, 3, 16, 16) and first[1].shape == (4, 3)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    # Whatever batch it stands in, a view is the same; another image, epoch or seed has another.
    alone = [samples[index][0] for index in (0, 7, 11)]
    assert torch.equal(samples[7][0], alone[1])
    assert not torch.equal(alone[0], alone[1]) and not torch.equal(alone[1], alone[2])
    assert [int(samples[index][1]) for index in (0, 5)] == [0, 1]
    samples.start_epoch(3)
    other = AugmentedFolderImages(images, 16, seed=4)
    other.start_epoch(2)
    assert not torch.equal(samples[0][0], alone[0]) and not torch.equal(other[0][0], alone[0])
    # Reading processes draw the same.
    batches = [[0, 1, 2], [6, 7, 9]]
    loader = DataLoader(samples, batch_sampler=batches, collate_fn=ImageSamples.collate, num_workers=2)
    for (views, shares), indices in zip(loader, batches, strict=True):
        expected = samples.__getitems__(indices)
        assert torch.equal(views, expected[0]) and torch.equal(shares, expected[1])


@pytest.mark.parametrize(
    ("mode", "name"),
    [("L", "a.JPEG"), ("CMYK", "a.JPEG"), ("RGBA", "a.png"), ("LA", "a.png"), ("P", "a.png"), ("1", "a.png")],
)
def test_every_kind_becomes_rgb(tmp_path: Path, mode: str, name: str) -> None:
    make_picture(1).convert(mode).save(tmp_path / name)
    with Image.open(tmp_path / name) as stored:
        assert stored.mode == mode
        expected = np.array(stored.convert("RGB"))
    assert np.array_equal(np.array(read_image(tmp_path / name)), expected)


def test_the_content_decides_and_not_the_name(tmp_path: Path) -> None:
    # One of ImageNet's files is a PNG with the name of a JPEG.
    make_picture(0).save(tmp_path / "a.JPEG", format="PNG")
    assert np.array_equal(np.array(read_image(tmp_path / "a.JPEG")), np.array(make_picture(0)))


def _cut(path: Path) -> None:
    make_picture(0).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


BAD_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "cannot identify"),
    "cut": (_cut, "fetch it again, or remove it$"),
    "a page": (lambda path: path.write_text("<html>404 not found</html>"), "cannot identify"),
    "16 bits": (
        lambda path: Image.fromarray(np.full((4, 4), 40_000, dtype=np.uint16)).save(path, format="PNG"),
        "pixels of the kind 'I;16'",
    ),
    "not there": (lambda path: None, "No such file"),
    # Pillow decodes EPS by Ghostscript: a file named .JPEG could start a program.
    "EPS": (lambda path: make_picture(0).save(path, format="EPS"), "cannot identify image file"),
    "TIFF": (lambda path: make_picture(0).save(path, format="TIFF"), "cannot identify image file"),
    # Pillow warns above the limit and raises an error above twice the limit; neither names the file.
    "large": (lambda path: make_picture(0, (40, 30)).save(path), "exceeds limit of"),
    "huge": (lambda path: make_picture(0, (80, 60)).save(path), "exceeds limit of"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_files_that_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    write, message = BAD_FILES[kind]
    write(tmp_path / "bad.JPEG")
    if kind in ("large", "huge"):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(DataError, match=f"bad.JPEG cannot be read as an image .*{message}"):
        read_image(tmp_path / "bad.JPEG")


def test_the_setting_that_hides_truncation_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_picture(0).save(tmp_path / "a.JPEG")
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(DataError, match="LOAD_TRUNCATED_IMAGES is on"):
        read_image(tmp_path / "a.JPEG")


class Script(np.random.Generator):
    """A generator that returns what it is told to, in order, and notes what was asked."""

    def __init__(self, uniform: list[float], integers: list[int], share: float = 0.0) -> None:
        super().__init__(np.random.PCG64(0))
        self.uniform_values, self.integer_values, self.share, self.asked = uniform, integers, share, []

    def uniform(self, low: float = 0.0, high: float = 1.0, size: None = None) -> float:  # type: ignore[override]
        # Told as the place within the range.
        return low + (high - low) * self.uniform_values.pop(0)

    def integers(self, low: int, *_: object, **__: object) -> int:  # type: ignore[override]
        self.asked.append(low)
        return self.integer_values.pop(0)

    def beta(self, a: float, b: float, size: None = None) -> float:  # type: ignore[override]
        self.asked.append((a, b))
        return self.share


IMAGES = torch.randn(4, 3, 8, 10, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([2, 0, 1, 1])


def test_mixup_and_cutmix() -> None:
    rng = Script([], [0], share=0.7)
    images, shares = mix(rng, IMAGES, LABELS, 3)
    assert rng.asked == [2, (0.2, 0.2)]
    for number in range(4):
        torch.testing.assert_close(images[number], 0.7 * IMAGES[number] + 0.3 * IMAGES[number - 1])
    # Classes 2, 0, 1, 1 with those before them, 1, 2, 0, 1.
    expected = torch.tensor([[0, 0.3, 0.7], [0.7, 0, 0.3], [0.3, 0.7, 0], [0, 1.0, 0]])
    torch.testing.assert_close(shares, expected)
    # Half of the root of 0.36 is 0.3: 3 columns and int(2.4) = 2 rows to each side of column 8 and row 1.
    rng = Script([], [1, 8, 1], share=0.64)
    images, shares = mix(rng, IMAGES, LABELS, 3)
    assert rng.asked == [2, (1.0, 1.0), 10, 8]
    inside = torch.zeros(8, 10, dtype=torch.bool)
    inside[0:3, 5:10] = True
    for number in range(4):
        assert torch.equal(images[number], torch.where(inside, IMAGES[number - 1], IMAGES[number]))
    # 15 of 80 pixels are another image's.
    mixed = torch.lerp(F.one_hot(LABELS, 3).float().roll(1, 0), F.one_hot(LABELS, 3).float(), 65 / 80)
    torch.testing.assert_close(shares, mixed)


def test_a_crop_is_the_published_one() -> None:
    # Half of the range of areas: (0.08 + 1) / 2 = 0.54 of 300 x 400; the middle of the logarithms is the ratio 1.
    side = round(math.sqrt(0.54 * 300 * 400))
    rng = Script([0.5, 0.5], [11, 22])
    assert draw_crop(rng, 300, 400) == (11, 22, side, side)
    assert rng.asked == [300 - side + 1, 400 - side + 1]
    # Largest area and ratio do not fit into a square; the next draw does: 0.08 of the area, 4 wide for 3 high.
    expected = (0, 5, round(math.sqrt(0.08 * 1e4 * 3 / 4)), round(math.sqrt(0.08 * 1e4 * 4 / 3)))
    assert draw_crop(Script([1.0, 1.0, 0.0, 1.0], [0, 5]), 100, 100) == expected
    # The largest area of the largest ratio, ten times, fits into none of these. Too wide: 4/3 of the height, central;
    # too high: 4/3 of the width; within the range: all of it.
    for size, last in {(30, 1000): (0, 480, 30, 40), (1000, 30): (480, 0, 40, 30), (30, 30): (0, 0, 30, 30)}.items():
        assert draw_crop(Script([1.0, 1.0] * 10, []), *size) == last


def test_erasing_is_the_published_one() -> None:
    image = torch.ones(3, 50, 60)
    # The middle of the areas, 0.175 of 3000; the middle of the logarithms of 0.3 and 3.3, of height over width.
    ratio = math.sqrt(0.3 * 3.3)
    rows, columns = round(math.sqrt(0.175 * 3000 * ratio)), round(math.sqrt(0.175 * 3000 / ratio))
    rng = Script([0.5, 0.5], [3, 4])
    erase(rng, image)
    assert rng.asked == [50 - rows + 1, 60 - columns + 1]
    expected = torch.ones(3, 50, 60)
    expected[:, 3 : 3 + rows, 4 : 4 + columns] = 0
    assert torch.equal(image, expected)
    # A third of the area at 3.3 high for 1 wide is higher than the image, ten times.
    flat = torch.ones(3, 2, 100)
    erase(Script([1.0, 0.0] * 10, []), flat)
    assert bool((flat == 1).all())
    # Nor is a rectangle as wide as the image: a third of 16 pixels is 4 wide and 1 high.
    square = torch.ones(3, 4, 4)
    erase(Script([1.0, 1.0] * 10, []), square)
    assert bool((square == 1).all())


PICTURE = make_picture(1, (13, 9))
PIXELS = np.array(PICTURE).astype(np.float64)
SQUARE = make_picture(2, (9, 9))


def apply(name: str, strength: float, image: Image.Image = PICTURE) -> np.ndarray:
    return np.array(change(image, name, strength)).astype(np.float64)


def test_directions_and_maps_of_values() -> None:
    """Pillow's operations are called the right way round."""
    assert np.array_equal(apply("translate_x", 3.2)[:, 3:], PIXELS[:, :-3])
    assert np.array_equal(apply("translate_y", -4.9)[:-4], PIXELS[4:])
    assert np.array_equal(apply("shear_x", 0.0), PIXELS) and np.array_equal(apply("identity", 0.0), PIXELS)
    assert np.array_equal(apply("rotate", 90.0, SQUARE), np.rot90(np.array(SQUARE)))
    assert np.abs(apply("brightness", -0.5) - 0.5 * PIXELS).max() <= 1.0
    assert np.array_equal(apply("posterize", 3.0), PIXELS // 32 * 32)
    assert np.array_equal(apply("solarize", 85.0), np.where(PIXELS < 85.0, PIXELS, 255 - PIXELS))
    # Equalising takes more pixels than there are levels.
    large = make_picture(1, (40, 32))
    for name in ("color", "contrast", "sharpness", "autocontrast", "equalize"):
        assert not np.array_equal(apply(name, 0.5, large), np.array(large)), name


def test_the_operations_are_the_published_ones_with_equal_probability() -> None:
    # Ranges of TrivialAugmentWide: shears 0.99, translations 32 pixels, rotation 135 degrees, enhancements 0.99.
    ranges = {name: None if steps is None else (steps[0], steps[-1]) for name, (steps, _) in OPERATIONS.items()}
    assert ranges == {
        "identity": None, "shear_x": (0, 0.99), "shear_y": (0, 0.99), "translate_x": (0, 32), "translate_y": (0, 32),
        "rotate": (0, 135), "brightness": (0, 0.99), "color": (0, 0.99), "contrast": (0, 0.99),
        "sharpness": (0, 0.99), "posterize": (8, 2), "solarize": (255, 0), "autocontrast": None, "equalize": None,
    }  # fmt: skip
    posterize = OPERATIONS["posterize"][0]
    assert posterize is not None
    # 8 less the nearest whole number of fifths.
    assert posterize.tolist() == [8] * 3 + [7] * 5 + [6] * 5 + [5] * 5 + [4] * 5 + [3] * 5 + [2] * 3
    assert {name for name, (_, is_signed) in OPERATIONS.items() if is_signed} == {*list(ranges)[1:10]}
    rng = np.random.default_rng(0)
    draws = [draw_operation(rng) for _ in range(14_000)]
    counts = Counter(name for name, _ in draws)
    # 1000 of each, with a standard deviation of 30.
    assert set(counts) == set(OPERATIONS) and all(abs(count - 1000) < 135 for count in counts.values())
    rotations = [strength for name, strength in draws if name == "rotate"]
    assert len({abs(strength) for strength in rotations}) == 31
    assert abs(sum(strength < 0 for strength in rotations) / len(rotations) - 0.5) < 0.08
    assert all(strength >= 0 for name, strength in draws if name in ("posterize", "solarize"))
