"""Reads one image file as RGB, or says what is wrong with it."""

from __future__ import annotations

import warnings
from pathlib import Path

from smoe.errors import DataError
from smoe.paper.imagenet.data.pillow import Image, ImageFile

# Others, such as 16 bits a pixel, Pillow would clip to white without a word.
_MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
# Of metadata, which is not looked at, and of transparency, which is dropped.
_HARMLESS = r"(Corrupt EXIF data|Truncated File Read|Metadata Warning|Palette images with Transparency)"


def read_image(path: Path) -> Image.Image:
    """The image as RGB, of 8 bits a channel.

    Grey, palette and CMYK images are converted, transparency is dropped, and an orientation in the EXIF data is
    ignored, all as torchvision's `ImageFolder` does. What kind of file it is, its content decides, not its name.

    Raises:
        DataError: if it cannot be read to its end. Damage inside a JPEG that leaves its structure whole cannot be seen.
    """
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise DataError(
            "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is on, and truncated images would be read as grey without an error: "
            "something in this process has set it; set it to False"
        )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", _HARMLESS, UserWarning)
            with Image.open(path) as image:
                if image.mode not in _MODES:
                    raise DataError(f"{path} has pixels of the kind {image.mode!r}, not of 8 bits; convert it")
                # convert() reads to the end; of an RGB image it is a copy, which outlives the file.
                return image.convert("RGB")
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path} is not there any more") from error
    # Pillow raises its own OSError for unknown and truncated files, and others from inside damaged headers.
    except (OSError, SyntaxError, ValueError, IndexError, EOFError, ZeroDivisionError) as error:
        raise DataError(f"{path} cannot be read as an image ({error}); fetch it again, or remove it") from error
