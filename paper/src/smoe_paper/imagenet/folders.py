"""Images in folders of classes: what they hold, and samples of them, augmented as in torchvision's recipe."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageFile, ImageOps
from torch import Tensor

from smoe.errors import DataError
from smoe_paper.experiments.task import BatchedSamples

# The usual mean and standard deviation of the channels of ImageNet's images.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
# Pillow would clip other modes, such as 16 bits a pixel, to white without a warning.
_MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
# Warnings about metadata, which is not used, and about transparency, which is dropped.
_HARMLESS = r"(Corrupt EXIF data|Truncated File Read|Metadata Warning|Palette images with Transparency)"


def read_image(path: Path) -> Image.Image:
    """The image, a JPEG or PNG, as RGB with 8 bits a channel, as torchvision's `ImageFolder` reads it.

    An image of more than `PIL.Image.MAX_IMAGE_PIXELS` pixels is refused.
    """
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise DataError(
            "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is on, and truncated images would be read as grey without an error: "
            "something in this process has set it; set it to False"
        )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", _HARMLESS, UserWarning)
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # Pillow knows more formats, some of which start other programs, such as Ghostscript for EPS.
            with Image.open(path, formats=("JPEG", "PNG")) as image:
                if image.mode not in _MODES:
                    raise ValueError(f"pixels of the kind {image.mode!r}, not of 8 bits")
                # convert() reads to the end; for an RGB image it returns a copy, which outlives the file.
                return image.convert("RGB")
    except Exception as error:  # a damaged header can make a reader fail in any way
        raise DataError(f"{path} cannot be read as an image ({error}); fetch it again, or remove it") from error


@dataclass(frozen=True)
class ClassFolders:
    """The images of one split, in the order of their classes and names."""

    folder: Path
    classes: tuple[str, ...]
    # `class/file`, as bytes: a million Python strings would be copied into every reading process.
    names: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> Path:
        return self.folder / os.fsdecode(self.names[index])

    def part(self, indices: np.ndarray) -> ClassFolders:
        return ClassFolders(self.folder, self.classes, self.names[indices], self.labels[indices])


def find_class_folders(folder: Path, classes: Sequence[str] | None = None) -> ClassFolders:
    """Lists the images of a split without opening them. Hidden files are ignored.

    Args:
        classes: Classes that the folder must have; any if None.
    """
    # A link to a folder counts as a folder: data sets are often distributed over several disks.
    entries = _list(folder) if folder.is_dir() else []
    stray = next((entry.name for entry in entries if not entry.is_dir()), None)
    found = tuple(entry.name for entry in entries)
    if stray is not None or not found:
        raise DataError(
            f"{folder} holds {stray or 'no folder'}: it is to hold a folder for each class with its images in it and "
            "nothing else, as in n01440764/n01440764_10026.JPEG; ImageNet's validation images come without: "
            "LOC_val_solution.csv names their classes"
        )
    differing = sorted(set(classes or found) ^ set(found))
    if differing:
        raise DataError(f"{folder} does not have the classes of the training images: {', '.join(differing[:3])} differ")
    names: list[bytes] = []
    counts: list[int] = []
    for name in found:
        files = [entry.name for entry in _list(folder / name)]
        odd = next((file for file in files if not file.lower().endswith((".jpeg", ".jpg", ".png"))), None)
        if odd is not None or not files:
            raise DataError(
                f"{folder / name} holds {odd or 'no image'}: a class has images named .jpeg, .jpg or .png, and nothing "
                "else; remove or convert it"
            )
        names += [os.fsencode(f"{name}/{file}") for file in files]
        counts.append(len(files))
    return ClassFolders(folder, found, np.array(names), np.repeat(np.arange(len(found)), counts))


def _list(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a folder that are not hidden, by name."""
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if entry.name[0] != "."), key=lambda entry: entry.name)


def hold_out(images: ClassFolders, number: int) -> tuple[ClassFolders, ClassFolders]:
    """Splits images into all but the first ones of each class, and these."""
    counts = np.bincount(images.labels)
    if counts.min() <= number:
        small = images.classes[int(np.argmin(counts))]
        raise DataError(f"{images.folder}: {small} has {counts.min()} images, of which {number} are to be held out")
    starts = np.cumsum(counts) - counts
    is_held = np.arange(len(images)) - starts[images.labels] < number
    return images.part(np.flatnonzero(~is_held)), images.part(np.flatnonzero(is_held))


# Separates the draws of a batch from those of its images.
_OF_BATCH = 1


class FolderImages(BatchedSamples):
    """The centres of images, with their classes."""

    def __init__(self, images: ClassFolders, resize: int = 232, crop: int = 224) -> None:
        self.images, self.resize, self.crop = images, resize, crop

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The images `(B, 3, size, size)`, float32, and their classes `(B,)`, int64."""
        views = torch.stack([self.view(index, read_image(self.images.path(index))) for index in indices])
        return views, torch.from_numpy(self.images.labels[np.asarray(indices)].astype(np.int64))

    def view(self, index: int, image: Image.Image) -> Tensor:
        del index
        return evaluation_view(image, self.resize, self.crop)


class AugmentedFolderImages(FolderImages):
    """Random views of training images, drawn anew in each epoch, and mixed within each batch.

    The draws for an image depend on the seed, the epoch and the image, and the mixing of a batch on its first index:
    neither depends on the process that reads it, or on a resume.
    """

    def __init__(self, images: ClassFolders, size: int, seed: int) -> None:
        self.images, self.size, self.seed, self.epoch = images, size, seed, 0

    def start_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        views, labels = super().__getitems__([index])
        return views[0], labels[0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The views `(B, 3, size, size)`, float32, and the shares of the classes `(B, N)`."""
        rng = np.random.default_rng((self.seed, self.epoch, indices[0], _OF_BATCH))
        return mix(rng, *super().__getitems__(indices), len(self.images.classes))

    def view(self, index: int, image: Image.Image) -> Tensor:
        return training_view(np.random.default_rng((self.seed, self.epoch, index)), image, self.size)


def normalised(image: Image.Image) -> Tensor:
    """An RGB image as float32, `(3, H, W)`, each channel normalised by its mean and standard deviation."""
    # np.array and not asarray: torch warns about read-only memory.
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).to(torch.float32, memory_format=torch.contiguous_format)
    return pixels.div_(255.0).sub_(torch.tensor(MEAN)[:, None, None]).div_(torch.tensor(STD)[:, None, None])


def evaluation_view(image: Image.Image, resize: int, crop: int) -> Tensor:
    """The centre of the image, `(3, crop, crop)`."""
    short = min(image.size)
    width, height = (resize if side == short else int(resize * side / short) for side in image.size)
    resized = image if (width, height) == image.size else image.resize((width, height), Image.Resampling.BILINEAR)
    top, left = round((height - crop) / 2.0), round((width - crop) / 2.0)
    return normalised(resized.crop((left, top, left + crop, top + crop)))


def training_view(rng: np.random.Generator, image: Image.Image, size: int) -> Tensor:
    """A random part of the image, flipped, changed by TrivialAugment and erased by chance, `(3, size, size)`."""
    top, left, rows, columns = draw_crop(rng, image.height, image.width)
    # Cropped first: with Pillow's `box`, pixels outside the crop would enter the filter.
    part = image.crop((left, top, left + columns, top + rows)).resize((size, size), Image.Resampling.BILINEAR)
    if rng.random() < 0.5:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    view = normalised(change(part, *draw_operation(rng)))
    if rng.random() < 0.1:
        erase(rng, view)
    return view


# Maximal number of draws, as in torchvision.
_NUM_TRIES = 10
Range = tuple[float, float]


def draw_crop(rng: np.random.Generator, height: int, width: int) -> tuple[int, int, int, int]:
    """Top, left, height and width of a random crop; if none fits, the largest central one of an allowed ratio."""
    drawn = _draw_rectangle(rng, height, width, (0.08, 1.0), (3 / 4, 4 / 3))
    if drawn is not None:
        return drawn
    rows, columns = min(height, round(width * 4 / 3)), min(width, round(height * 4 / 3))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def erase(rng: np.random.Generator, image: Tensor) -> None:
    """Sets a random rectangle, smaller than the image `(C, H, W)`, to 0, the mean of normalised images, in place."""
    height, width = image.shape[-2:]
    drawn = _draw_rectangle(rng, height, width, (0.02, 0.33), (1 / 3.3, 1 / 0.3), is_smaller=True)
    if drawn is not None:
        top, left, rows, columns = drawn
        image[..., top : top + rows, left : left + columns] = 0.0


def _draw_rectangle(
    rng: np.random.Generator, height: int, width: int, scale: Range, ratio: Range, *, is_smaller: bool = False
) -> tuple[int, int, int, int] | None:
    """Top, left, height and width; area and logarithm of width / height are uniform. None if ten draws do not fit."""
    for _ in range(_NUM_TRIES):
        area = height * width * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        columns, rows = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < columns <= width - is_smaller and 0 < rows <= height - is_smaller:
            return int(rng.integers(height - rows + 1)), int(rng.integers(width - columns + 1)), rows, columns
    return None


_UP_TO_1, _PIXELS, _DEGREES, _LEVELS = (np.linspace(0.0, last, 31) for last in (0.99, 32.0, 135.0, 255.0))
# The operations of TrivialAugment, wide: strengths (None if there are none), and whether half of them are negative. A
# shear is in pixels for each pixel from the top or the left; images are shifted to the right or down, by whole pixels.
OPERATIONS: dict[str, tuple[np.ndarray | None, bool]] = {
    "identity": (None, False),
    "shear_x": (_UP_TO_1, True),
    "shear_y": (_UP_TO_1, True),
    "translate_x": (_PIXELS, True),
    "translate_y": (_PIXELS, True),
    "rotate": (_DEGREES, True),
    "brightness": (_UP_TO_1, True),
    "color": (_UP_TO_1, True),
    "contrast": (_UP_TO_1, True),
    "sharpness": (_UP_TO_1, True),
    # Number of bits that remain: 8 to 2.
    "posterize": (8 - np.round(np.arange(31) / 5), False),
    # Values from this threshold on are inverted.
    "solarize": (_LEVELS[::-1], False),
    "autocontrast": (None, False),
    "equalize": (None, False),
}


def draw_operation(rng: np.random.Generator) -> tuple[str, float]:
    """An operation and one of its strengths, all with equal probability."""
    name = list(OPERATIONS)[rng.integers(len(OPERATIONS))]
    strengths, is_signed = OPERATIONS[name]
    strength = 0.0 if strengths is None else float(strengths[rng.integers(len(strengths))])
    return name, -strength if is_signed and rng.integers(2) else strength


def change(image: Image.Image, name: str, strength: float) -> Image.Image:
    """The RGB image changed by an operation, with black beyond the borders."""
    # Maps a new pixel to the old one.
    matrices = {
        "shear_x": (1.0, strength, 0.0, 0.0, 1.0, 0.0),
        "shear_y": (1.0, 0.0, 0.0, strength, 1.0, 0.0),
        "translate_x": (1.0, 0.0, -int(strength), 0.0, 1.0, 0.0),
        "translate_y": (1.0, 0.0, 0.0, 0.0, 1.0, -int(strength)),
    }
    match name:
        case "identity":
            return image
        case "rotate":
            return image.rotate(strength, Image.Resampling.BILINEAR)
        case "posterize":
            return ImageOps.posterize(image, int(strength))
        case "solarize":
            return ImageOps.solarize(image, strength)  # type: ignore[arg-type]
        case "autocontrast" | "equalize":
            return getattr(ImageOps, name)(image)
        case _ if name in matrices:
            return image.transform(image.size, Image.Transform.AFFINE, matrices[name], Image.Resampling.BILINEAR)
        case _:
            return getattr(ImageEnhance, name.capitalize())(image).enhance(1.0 + strength)


def mix(rng: np.random.Generator, images: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Mixes a batch by mixup (weighted means) or CutMix (pasted rectangles), with equal probability.

    A pasted rectangle has the image's proportions and a random centre; the part outside the image is cut off.

    Returns:
        The images, and the shares of the classes `(B, N)`.
    """
    others, is_cut = images.roll(1, 0), bool(rng.integers(2))
    alpha = 1.0 if is_cut else 0.2
    own = float(rng.beta(alpha, alpha))
    if is_cut:
        height, width = images.shape[-2:]
        half = 0.5 * math.sqrt(1.0 - own)
        x, y = int(rng.integers(width)), int(rng.integers(height))
        left, right = max(x - int(half * width), 0), min(x + int(half * width), width)
        top, bottom = max(y - int(half * height), 0), min(y + int(half * height), height)
        mixed = images.clone()
        mixed[..., top:bottom, left:right] = others[..., top:bottom, left:right]
        own = 1.0 - (right - left) * (bottom - top) / (width * height)
    else:
        mixed = torch.lerp(others, images, own)
    shares = F.one_hot(labels, num_classes).to(images.dtype)
    return mixed, torch.lerp(shares.roll(1, 0), shares, own)
