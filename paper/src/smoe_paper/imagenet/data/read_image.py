"""Reads one image file as RGB, or raises an error with the reason."""

from __future__ import annotations

import stat
import warnings
from pathlib import Path

from smoe.errors import DataError
from smoe_paper.imagenet.data.pillow import Image, ImageFile, UnidentifiedImageError

FORMATS = ("JPEG", "PNG")
"""Formats that are read. Pillow knows many more, some of which start other programs, such as Ghostscript for EPS."""

# Pillow would clip other modes, such as 16 bits a pixel, to white without a warning.
_MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
# Warnings about metadata, which is not used, and about transparency, which is dropped.
_HARMLESS = r"(Corrupt EXIF data|Truncated File Read|Metadata Warning|Palette images with Transparency)"


def read_image(path: Path) -> Image.Image:
    """Returns the image as RGB with 8 bits a channel.

    Grey, palette and CMYK images are converted, transparency is dropped, and an orientation in the EXIF data is
    ignored, all as in torchvision's `ImageFolder`. The format is found from the content, not from the name, and must be
    JPEG or PNG. An image of more than `PIL.Image.MAX_IMAGE_PIXELS` pixels is refused before it is decoded.

    Raises:
        DataError: If the file is not a regular file, has another format, is too large, or cannot be read completely.
            Damage that keeps the structure of a JPEG valid is not found.
    """
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise DataError(
            "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is on, and truncated images would be read as grey without an error: "
            "something in this process has set it; set it to False"
        )
    try:
        # A pipe would be waited for, and a device may never end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise DataError(f"{path} is not a regular file, but a pipe, device or folder; remove it")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", _HARMLESS, UserWarning)
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as image:
                if image.mode not in _MODES:
                    raise DataError(f"{path} has pixels of the kind {image.mode!r}, not of 8 bits; convert it")
                # convert() reads to the end; for an RGB image it returns a copy, which outlives the file.
                return image.convert("RGB")
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path} is not there any more") from error
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(
            f"{path} is too large: it has more than {Image.MAX_IMAGE_PIXELS:,} pixels (PIL.Image.MAX_IMAGE_PIXELS); "
            "make it smaller, or remove it"
        ) from error
    except UnidentifiedImageError as error:
        raise DataError(
            f"{path} cannot be read as an image: it is neither JPEG nor PNG; convert it, fetch it again, or remove it"
        ) from error
    except Exception as error:  # a damaged header can make a reader fail in any way
        raise DataError(f"{path} cannot be read as an image ({error}); fetch it again, or remove it") from error
