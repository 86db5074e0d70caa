"""Orders of HEALPix pixels, their coordinates and their neighbours, compared with healpy."""

from __future__ import annotations

import pytest
import torch

from smoe.ops._healpix import check_healpix_coordinates, face_pixels, healpix_coordinates, pad_faces

healpy = pytest.importorskip("healpy")


@pytest.mark.parametrize("nside", [1, 8])
def test_orders(nside):
    nested, ring = face_pixels(nside, "nested"), face_pixels(nside, "ring")
    face, y, x = torch.meshgrid(torch.arange(12), torch.arange(nside), torch.arange(nside), indexing="ij")
    for numbers, is_nested in ((nested, True), (ring, False)):
        expected = healpy.xyf2pix(nside, x.flatten().numpy(), y.flatten().numpy(), face.flatten().numpy(), is_nested)
        assert numbers.tolist() == expected.tolist()


def test_ring_order_of_any_size():
    assert face_pixels(3, "ring").sort().values.tolist() == list(range(108))
    with pytest.raises(ValueError, match="power of two in nested order, got 3"):
        face_pixels(3, "nested")


@pytest.mark.parametrize("nside", [1, 4])
@pytest.mark.parametrize("order", ["nested", "ring"])
def test_coordinates(nside, order):
    longitude, latitude = healpy.pix2ang(nside, range(12 * nside**2), nest=order == "nested", lonlat=True)
    found = healpix_coordinates(nside, order)
    torch.testing.assert_close(found[:, 0], torch.as_tensor(latitude))
    torch.testing.assert_close(found[:, 1], torch.as_tensor(longitude))


@pytest.mark.parametrize("nside", [1, 2, 4])
def test_the_border_holds_the_neighbours(nside):
    """Around each pixel stand its eight neighbours; the mean of two where healpy has none."""
    values = torch.randn(1, 1, 12 * nside**2, dtype=torch.float64, requires_grad=True)
    nested = face_pixels(nside, "nested")
    padded = pad_faces(values[:, :, nested].unflatten(2, (12, nside, nside)), 1)
    # SW, W, NW, N, NE, E, SE, S as steps of row and column.
    steps = [(0, -1), (1, -1), (1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1)]
    flat = values[0, 0]
    expected, actual = [], []
    for place, pixel in enumerate(nested.tolist()):
        face, y, x = place // nside**2, place // nside % nside, place % nside
        around = healpy.get_all_neighbours(nside, pixel, nest=True).tolist()
        for number, (down, right) in enumerate(steps):
            actual.append(padded[0, 0, face, 1 + y + down, 1 + x + right])
            if around[number] >= 0:
                expected.append(flat[around[number]])
            else:
                expected.append((flat[around[number - 1]] + flat[around[(number + 1) % 8]]) / 2)
    actual, expected = torch.stack(actual), torch.stack(expected)
    torch.testing.assert_close(actual, expected)
    error = torch.randn_like(actual)
    torch.testing.assert_close(torch.autograd.grad(actual, values, error), torch.autograd.grad(expected, values, error))


@pytest.mark.parametrize("width", [1, 2, 3])
def test_gradients_of_wide_borders(width):
    faces = torch.randn(1, 2, 12, 3, 3, dtype=torch.float64, requires_grad=True)
    # The border is linear in the faces, so that the gradient in a random direction shows every mistake.
    torch.autograd.gradcheck(lambda part: pad_faces(part, width), faces, fast_mode=True)
    # A constant sphere has a constant border.
    assert (pad_faces(torch.ones_like(faces), width) == 1.0).all()


def test_the_order_is_detected_by_coordinates():
    ring = healpix_coordinates(4, "ring").clone()
    ring[:, 1] = (ring[:, 1] + 180.0) % 360.0 - 180.0
    check_healpix_coordinates(ring, 4, "ring")
    with pytest.raises(ValueError, match="pixels in ring order, but pixel_order is 'nested'"):
        check_healpix_coordinates(ring, 4, "nested")
    with pytest.raises(ValueError, match="not those of the pixels of a HEALPix sphere with nside 4"):
        check_healpix_coordinates(ring.flip(1), 4, "ring")
    with pytest.raises(ValueError, match=r"must be \(48, 2\) for nside 2, got \(192, 2\)"):
        check_healpix_coordinates(ring, 2, "ring")
