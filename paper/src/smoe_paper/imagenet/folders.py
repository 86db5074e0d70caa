"""Images in folders of classes: what they hold, and samples of them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFile
from torch import Tensor

from smoe.errors import DataError
from smoe_paper.experiments.samples import BatchedSamples
from smoe_paper.imagenet.augment import draw_crop, erase, mix, trivial_augment
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
