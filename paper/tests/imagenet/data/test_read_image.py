from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from image_folders import make_picture
from smoe.errors import DataError
from smoe_paper.imagenet.folders import read_image


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
