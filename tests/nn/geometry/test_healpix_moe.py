"""The layer on a HEALPix sphere: its definition by healpy's neighbours, orders of pixels, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import smoe
from definitions import compare_gradients
from smoe.nn._healpix_layer import HEALPixMoE
from smoe.ops._healpix import check_healpix_coordinates, face_pixels, healpix_coordinates, pad_faces

healpy = pytest.importorskip("healpy")

# SW, W, NW, N, NE, E, SE, S as taps of a 3 x 3 filter: rows towards the north-west, columns towards the north-east.
TAPS = [(1, 0), (2, 0), (2, 1), (2, 2), (1, 2), (0, 2), (0, 1), (0, 0)]


def loop_layer(x: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, nside: int, F_: int, nest: bool):
    """Loops over samples, pixels, experts and healpy's neighbours; pixels `(B, C, P)` are in its order."""
    experts = weight.unflatten(0, (-1, F_))
    outputs = []
    for sample in x:
        for pixel in range(sample.shape[1]):
            around = healpy.get_all_neighbours(nside, pixel, nest=nest).tolist()
            for expert in indices[:, pixel].tolist():
                total = experts[expert, :, :, 1, 1] @ sample[:, pixel]
                for number, tap in enumerate(TAPS):
                    beside = [around[number]]
                    if beside[0] < 0:
                        beside = [around[number - 1], around[(number + 1) % 8]]
                    total = total + experts[(expert, slice(None), slice(None), *tap)] @ sample[:, beside].mean(dim=1)
                outputs.append(total)
    return torch.stack(outputs).view(len(x), x.shape[2], -1).transpose(1, 2)


@pytest.mark.parametrize(
    ("nside", "dtype", "order", "expert_channels"),
    [
        (2, torch.float32, "nested", 1),
        (2, torch.float32, "ring", 2),
        (2, torch.float64, "nested", 2),
        (1, torch.float64, "ring", 1),
        (4, torch.float64, "nested", 1),
    ],
)
def test_every_gradient_is_that_of_the_loops(nside, dtype, order, expert_channels):
    options = {"nside": nside, "pixel_order": order, "expert_channels": expert_channels}
    layer = HEALPixMoE.from_experts(2, 5, 2, rule="frozen", order="score", dtype=dtype, **options)
    x = torch.randn(2, 2, 12 * nside**2, dtype=dtype, requires_grad=True)
    expected = loop_layer(x, layer.weight, layer.routing().indices, nside, expert_channels, order == "nested")
    compare_gradients(layer(x), expected, [x, layer.weight], 1e-10 if dtype == torch.float64 else 1e-4)


def test_faces_and_orders_agree():
    gate = smoe.TensorGate(6, 2, (12, 4, 4))
    layers = [
        HEALPixMoE.from_experts(3, 6, 2, nside=4, pixel_order=order, gate=gate, rule="frozen")
        for order in ("nested", "ring")
    ]
    layers[1].load_state_dict(layers[0].state_dict())
    faces = torch.randn(2, 3, 12, 4, 4)
    expected = layers[0](faces)
    assert expected.shape == (2, 2, 12, 4, 4)
    for layer in layers:
        pixels = face_pixels(4, layer.pixel_order)
        flat = torch.empty(2, 3, 192)
        flat[:, :, pixels] = faces.flatten(2)
        torch.testing.assert_close(layer(flat)[:, :, pixels], expected.flatten(2))
        assert (layer.routing().indices[:, pixels] == layer.routing(faces=True).indices.flatten(1)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nside": 6}, "power of two in nested order, got 6"),
        ({"pixel_order": "rings"}, "pixel_order must be one of nested, ring, got 'rings'"),
        ({"nside": 4.0}, r"nside must be an integer of at least 1, got 4\.0"),
        ({"nside": 1, "kernel_size": 5}, "odd and at most 3 for nside 1, got 5"),
        ({"coordinates": healpix_coordinates(4, "ring")}, "ring order, but pixel_order is 'nested'"),
        ({}, r"\(B, 2, 12, 4, 4\) or \(B, 2, 192\), got shape \(1, 2, 48\)"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"nside": 4, **options}
    with pytest.raises(ValueError, match=message):
        HEALPixMoE.from_experts(2, 6, 2, **arguments)(torch.randn(1, 2, 48))


def test_called_like_a_convolution():
    layer = HEALPixMoE(2, 5, nside=4)
    assert layer(torch.randn(1, 2, 192)).shape == (1, 5, 192)
    assert (layer.gate.num_experts, layer.out_channels, layer.kernel_size) == (10, 5, (3, 3))


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


@pytest.mark.parametrize("width", [1, 2, 3])
def test_gradients_of_wide_borders(width):
    faces = torch.randn(1, 2, 12, 3, 3, dtype=torch.float64, requires_grad=True)
    # The border is linear in the faces, so that the gradient in a random direction shows every mistake.
    torch.autograd.gradcheck(lambda part: pad_faces(part, width), faces, fast_mode=True)
    # A constant sphere has a constant border.
    assert (pad_faces(torch.ones_like(faces), width) == 1.0).all()
    # The kernels of float32: output, gradient, and the gradient of that, which is linear in the error.
    results = []
    for given in (faces, faces.detach().float().requires_grad_()):
        padded = pad_faces(given, width)
        error = torch.linspace(-1.0, 1.0, padded.numel(), dtype=given.dtype).view_as(padded).requires_grad_()
        (by_faces,) = torch.autograd.grad(padded, given, error, create_graph=True)
        (by_error,) = torch.autograd.grad(by_faces, error, given.detach())
        results.append([each.detach().float() for each in (padded, by_faces, by_error)])
    torch.testing.assert_close(results[1], results[0])


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
