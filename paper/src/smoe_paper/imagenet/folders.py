"""Images in folders of classes: what they hold, and samples of them, augmented as in torchvision's recipe."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageFile, ImageOps
from torch import Tensor

from smoe.errors import DataError
from smoe_paper.experiments.task import BatchedSamples
from smoe_paper.imagenet.recipes import Augmentation

# The usual mean and standard deviation of the channels of ImageNet's images.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def training_view(rng: np.random.Generator, image: Image.Image, size: int, options: Augmentation) -> torch.Tensor:
    """A random, augmented part of the image, `(3, size, size)`."""
    top, left, rows, columns = draw_crop(rng, image.height, image.width, options.crop_scale, options.crop_ratio)
    # Cropped first: with Pillow's `box`, pixels outside the crop would enter the filter.
    part = image.crop((left, top, left + columns, top + rows)).resize((size, size), Image.Resampling.BILINEAR)
    if rng.random() < options.flip:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if options.trivial_augment:
        part = trivial_augment(rng, part)
    view = normalised(part)
    if rng.random() < options.erasing:
        erase(rng, view)
    return view


def evaluation_view(image: Image.Image, resize: int, crop: int) -> torch.Tensor:
    """The centre of the image, `(3, crop, crop)`."""
    short = min(image.size)
    width, height = (resize if side == short else int(resize * side / short) for side in image.size)
    resized = image if (width, height) == image.size else image.resize((width, height), Image.Resampling.BILINEAR)
    top, left = round((height - crop) / 2.0), round((width - crop) / 2.0)
    return normalised(resized.crop((left, top, left + crop, top + crop)))


def normalised(image: Image.Image) -> torch.Tensor:
    """An RGB image as float32, `(3, H, W)`, each channel normalised by its mean and standard deviation."""
    # np.array and not asarray: torch warns about read-only memory.
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).to(torch.float32, memory_format=torch.contiguous_format)
    return pixels.div_(255.0).sub_(torch.tensor(MEAN)[:, None, None]).div_(torch.tensor(STD)[:, None, None])


# Pillow would clip other modes, such as 16 bits a pixel, to white without a warning.
_MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
# Warnings about metadata, which is not used, and about transparency, which is dropped.
_HARMLESS = r"(Corrupt EXIF data|Truncated File Read|Metadata Warning|Palette images with Transparency)"


def read_image(path: Path) -> Image.Image:
    """The image, a JPEG or PNG, as RGB with 8 bits a channel.

    Grey, palette and CMYK images are converted, transparency is dropped, and an orientation in the EXIF data is
    ignored, as in torchvision's `ImageFolder`. An image of more than `PIL.Image.MAX_IMAGE_PIXELS` pixels is refused.
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
                    raise DataError(f"{path} has pixels of the kind {image.mode!r}, not of 8 bits; convert it")
                # convert() reads to the end; for an RGB image it returns a copy, which outlives the file.
                return image.convert("RGB")
    except DataError:
        raise
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


def find_classes(folder: Path) -> tuple[str, ...]:
    """The class folders of a split, sorted."""
    # A link to a folder counts as a folder: data sets are often distributed over several disks.
    found = tuple(sorted(each.name for each in _list(folder) if each.is_dir())) if folder.is_dir() else ()
    if not found or len(found) < len(_list(folder)):
        stray = [each.name for each in _list(folder) if not each.is_dir()] if folder.is_dir() else []
        raise DataError(
            f"{folder} holds {len(found)} folders{f' beside {stray[0]}' if stray else ''}: it is to hold a folder for "
            "each class with its images in it and nothing else, as in n01440764/n01440764_10026.JPEG; ImageNet's "
            "validation images come without: LOC_val_solution.csv names their classes"
        )
    return found


def find_class_folders(folder: Path, classes: Sequence[str] | None = None) -> ClassFolders:
    """Lists the images of a split without opening them. Hidden files are ignored."""
    found = find_classes(folder)
    differing = sorted(set(classes or found) ^ set(found))
    if differing:
        raise DataError(f"{folder} does not have the classes of the training images: {', '.join(differing[:3])} differ")
    names: list[bytes] = []
    counts: list[int] = []
    for name in found:
        files = sorted(entry.name for entry in _list(folder / name))
        odd = [file for file in files if not file.lower().endswith((".jpeg", ".jpg", ".png"))]
        if odd or not files:
            raise DataError(
                f"{folder / name} holds {odd[0] if odd else 'no image'}: a class has images named .jpeg, .jpg or .png, "
                "and nothing else; remove or convert it"
            )
        names += [os.fsencode(f"{name}/{file}") for file in files]
        counts.append(len(files))
    return ClassFolders(folder, found, np.array(names), np.repeat(np.arange(len(found)), counts))


def hold_out(images: ClassFolders, number: int) -> tuple[ClassFolders, ClassFolders]:
    """Splits images into all but the first ones of each class, and these."""
    counts = np.bincount(images.labels, minlength=len(images.classes))
    if counts.min() <= number:
        small = images.classes[int(np.argmin(counts))]
        raise DataError(f"{images.folder}: {small} has {counts.min()} images, of which {number} are to be held out")
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    is_held = np.arange(len(images)) - starts[images.labels] < number
    return images.part(np.flatnonzero(~is_held)), images.part(np.flatnonzero(is_held))


def _list(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a folder that are not hidden."""
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


# Separates the draws of a batch from those of its images.
_OF_BATCH = 1


class FolderImages(BatchedSamples):
    """The centres of images, with their classes."""

    def __init__(self, images: ClassFolders, resize: int = 232, crop: int = 224) -> None:
        self.images, self.resize, self.crop = images, resize, crop

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The images `(B, 3, crop, crop)`, float32, and their classes `(B,)`, int64."""
        images = [evaluation_view(read_image(self.images.path(index)), self.resize, self.crop) for index in indices]
        return torch.stack(images), _labels(self.images, indices)


class AugmentedFolderImages(BatchedSamples):
    """Random views of training images, drawn anew in each epoch, and mixed within each batch.

    The draws for an image depend on the seed, the epoch and the image, and the mixing of a batch on its first index:
    neither depends on the process that reads it, or on a resume.
    """

    def __init__(self, images: ClassFolders, size: int, augmentation: Augmentation, seed: int) -> None:
        self.images, self.size, self.augmentation, self.seed = images, size, augmentation, seed
        self.epoch = 0

    def start_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._view(index), _labels(self.images, [index])[0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The views `(B, 3, size, size)`, float32.

        The targets are the shares of the classes `(B, N)`; or the classes `(B,)`, int64, if nothing is mixed.
        """
        views = torch.stack([self._view(index) for index in indices])
        labels = _labels(self.images, indices)
        rng = np.random.default_rng((self.seed, self.epoch, indices[0], _OF_BATCH))
        options = self.augmentation
        return mix(rng, views, labels, len(self.images.classes), (options.mixup, options.cutmix))

    def _view(self, index: int) -> Tensor:
        rng = np.random.default_rng((self.seed, self.epoch, index))
        image = read_image(self.images.path(index))
        return training_view(rng, image, self.size, self.augmentation)


def _labels(images: ClassFolders, indices: Sequence[int]) -> Tensor:
    return torch.from_numpy(images.labels[np.asarray(indices)].astype(np.int64))


def mixup(
    rng: np.random.Generator, images: torch.Tensor, shares: torch.Tensor, alpha: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Replaces images by weighted means of two images."""
    own = float(rng.beta(alpha, alpha))
    return torch.lerp(images.roll(1, 0), images, own), torch.lerp(shares.roll(1, 0), shares, own)


def cutmix(
    rng: np.random.Generator, images: torch.Tensor, shares: torch.Tensor, alpha: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pastes a rectangle of another image; the labels are mixed by the areas. Has the arguments of `mixup`.

    The rectangle has the image's proportions and a random centre; the part outside the image is cut off.
    """
    height, width = images.shape[-2:]
    half = 0.5 * math.sqrt(1.0 - float(rng.beta(alpha, alpha)))
    x, y = int(rng.integers(width)), int(rng.integers(height))
    half_width, half_height = int(half * width), int(half * height)
    left, right = max(x - half_width, 0), min(x + half_width, width)
    top, bottom = max(y - half_height, 0), min(y + half_height, height)
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = images.roll(1, 0)[..., top:bottom, left:right]
    own = 1.0 - (right - left) * (bottom - top) / (width * height)
    return mixed, torch.lerp(shares.roll(1, 0), shares, own)


def mix(
    rng: np.random.Generator, images: torch.Tensor, labels: torch.Tensor, num_classes: int, alphas: tuple[float, float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mixes a batch by mixup or CutMix with equal probability.

    Returns:
        The images and the shares of the classes `(B, N)`, or the labels themselves if both are disabled.
    """
    ways = [(way, alpha) for way, alpha in zip((mixup, cutmix), alphas, strict=True) if alpha > 0.0]
    if not ways:
        return images, labels
    way, alpha = ways[rng.integers(len(ways))]
    return way(rng, images, F.one_hot(labels, num_classes).to(images.dtype), alpha)


# Maximal number of draws, as in torchvision.
_NUM_TRIES = 10
ERASED_AREA = (0.02, 0.33)
ERASED_RATIO = (0.3, 3.3)


def draw_crop(
    rng: np.random.Generator, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int, int, int]:
    """Returns top, left, height and width of a random crop.

    Area and logarithm of the ratio are uniform. If ten draws do not fit in the image, the crop is the largest central
    one of an allowed ratio.
    """
    for _ in range(_NUM_TRIES):
        area, aspect = _draw_shape(rng, height * width, scale, ratio)
        columns, rows = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < columns <= width and 0 < rows <= height:
            return int(rng.integers(height - rows + 1)), int(rng.integers(width - columns + 1)), rows, columns
    rows, columns = height, width
    if width / height < ratio[0]:
        rows = round(width / ratio[0])
    elif width / height > ratio[1]:
        columns = round(height * ratio[1])
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def erase(rng: np.random.Generator, image: torch.Tensor) -> None:
    """Sets a random rectangle of a normalised image `(C, H, W)` to 0, its mean, in place.

    Nothing is erased if ten draws give no rectangle smaller than the image on both sides.
    """
    height, width = image.shape[-2:]
    for _ in range(_NUM_TRIES):
        area, aspect = _draw_shape(rng, height * width, ERASED_AREA, ERASED_RATIO)
        rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if rows < height and columns < width:
            top, left = int(rng.integers(height - rows + 1)), int(rng.integers(width - columns + 1))
            image[..., top : top + rows, left : left + columns] = 0.0
            return


def _draw_shape(
    rng: np.random.Generator, area: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[float, float]:
    return area * rng.uniform(*scale), math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))


NUM_STRENGTHS = 31
Operation = Callable[[Image.Image, float], Image.Image]


def _affine(make_inverse: Callable[[float], tuple[float, ...]]) -> Operation:
    """A transform with black beyond the borders; the matrix of a strength maps a new pixel to the old one."""

    def transform(image: Image.Image, strength: float) -> Image.Image:
        return image.transform(image.size, Image.Transform.AFFINE, make_inverse(strength), Image.Resampling.BILINEAR)

    return transform


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    return lambda image, strength: kind(image).enhance(1.0 + strength)


_UP_TO_1 = np.linspace(0.0, 0.99, NUM_STRENGTHS)
_PIXELS = np.linspace(0.0, 32.0, NUM_STRENGTHS)
# Each operation with its strengths (None if it has none) and whether half of them are negative. A shear is in pixels
# for each pixel from the top or the left; images are shifted to the right or down, by whole pixels.
OPERATIONS: dict[str, tuple[Operation, np.ndarray | None, bool]] = {
    "identity": (lambda image, _: image, None, False),
    "shear_x": (_affine(lambda strength: (1.0, strength, 0.0, 0.0, 1.0, 0.0)), _UP_TO_1, True),
    "shear_y": (_affine(lambda strength: (1.0, 0.0, 0.0, strength, 1.0, 0.0)), _UP_TO_1, True),
    "translate_x": (_affine(lambda strength: (1.0, 0.0, -int(strength), 0.0, 1.0, 0.0)), _PIXELS, True),
    "translate_y": (_affine(lambda strength: (1.0, 0.0, 0.0, 0.0, 1.0, -int(strength))), _PIXELS, True),
    "rotate": (
        lambda image, degrees: image.rotate(degrees, Image.Resampling.BILINEAR),
        np.linspace(0.0, 135.0, NUM_STRENGTHS),
        True,
    ),
    "brightness": (_enhance(ImageEnhance.Brightness), _UP_TO_1, True),
    "color": (_enhance(ImageEnhance.Color), _UP_TO_1, True),
    "contrast": (_enhance(ImageEnhance.Contrast), _UP_TO_1, True),
    "sharpness": (_enhance(ImageEnhance.Sharpness), _UP_TO_1, True),
    # Number of bits that remain: 8 to 2.
    "posterize": (
        lambda image, bits: ImageOps.posterize(image, int(bits)),
        8 - np.round(np.arange(NUM_STRENGTHS) / ((NUM_STRENGTHS - 1) / 6)),
        False,
    ),
    # Values from this threshold on are inverted.
    "solarize": (
        lambda image, threshold: ImageOps.solarize(image, threshold),  # type: ignore[arg-type]
        np.linspace(255.0, 0.0, NUM_STRENGTHS),
        False,
    ),
    "autocontrast": (lambda image, _: ImageOps.autocontrast(image), None, False),
    "equalize": (lambda image, _: ImageOps.equalize(image), None, False),
}
_NAMES = tuple(OPERATIONS)


def draw_operation(rng: np.random.Generator) -> tuple[str, float]:
    """Draws an operation and one of its strengths, all with equal probability."""
    name = _NAMES[rng.integers(len(_NAMES))]
    _, strengths, is_signed = OPERATIONS[name]
    strength = 0.0 if strengths is None else float(strengths[rng.integers(NUM_STRENGTHS)])
    return name, -strength if is_signed and rng.integers(2) else strength


def trivial_augment(rng: np.random.Generator, image: Image.Image) -> Image.Image:
    """The RGB image changed by one random operation."""
    name, strength = draw_operation(rng)
    return OPERATIONS[name][0](image, strength)
