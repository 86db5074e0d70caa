"""Reads one image file as RGB, or raises an error with the reason."""

from __future__ import annotations

import warnings
from pathlib import Path

from smoe.errors import DataError
from smoe.paper.imagenet.data.pillow import Image, ImageFile

# Pillow would clip other modes, such as 16 bits a pixel, to white without a warning.
_MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
# Warnings about metadata, which is not used, and about transparency, which is dropped.
_HARMLESS = r"(Corrupt EXIF data|Truncated File Read|Metadata Warning|Palette images with Transparency)"


def read_image(path: Path) -> Image.Image:
    """Returns the image as RGB with 8 bits a channel.

    Grey, palette and CMYK images are converted, transparency is dropped, and an orientation in the EXIF data is
    ignored, all as in torchvision's `ImageFolder`. The format is found from the content, not from the name.

    Raises:
        DataError: If the file cannot be read completely. Damage that keeps the structure of a JPEG valid is not found.
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
                # convert() reads to the end; for an RGB image it returns a copy, which outlives the file.
                return image.convert("RGB")
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path} is not there any more") from error
    # Pillow raises OSError for unknown and truncated files, and other errors inside damaged headers.
    except (OSError, SyntaxError, ValueError, IndexError, EOFError, ZeroDivisionError) as error:
        raise DataError(f"{path} cannot be read as an image ({error}); fetch it again, or remove it") from error
