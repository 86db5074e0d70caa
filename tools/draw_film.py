"""Trains one layer on a globe where land, sea and ice follow different laws, and films the routing as it learns.

python tools/draw_film.py [FILE]    (about half a minute; docs/pictures/learning.gif if no file is given)
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import torch
from globe import draw_globe
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.path import Path as Outline
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import conv2d, mse_loss, pad

import smoe
from smoe._notebook import coastlines

PICTURE = Path(__file__).parents[1] / "docs/pictures/learning.gif"
HEIGHT, WIDTH, NUM_STEPS = 64, 128, 200
LATITUDE = 90 - (np.arange(HEIGHT) + 0.5) * 180 / HEIGHT
LONGITUDE = -180 + (np.arange(WIDTH) + 0.5) * 360 / WIDTH
COLOURS = ("#3b76b8", "#e2a93b", "#8d5fa8")


def regions() -> Tensor:
    """Sea 0, land 1, ice 2."""
    points = np.stack(np.meshgrid(LONGITUDE, LATITUDE), axis=-1).reshape(-1, 2)
    is_land = np.logical_xor.reduce([Outline(line).contains_points(points) for line in coastlines()])
    latitude, longitude = LATITUDE[:, None], LONGITUDE[None, :]
    is_greenland = (latitude > 60) & (longitude > -56) & (longitude < -18)
    is_cold = (latitude > 70) | (latitude < -60) | is_greenland
    is_land = is_land.reshape(HEIGHT, WIDTH)
    return torch.from_numpy(is_land.astype(np.int64) + (is_land & is_cold))


def pairs(number: int, where: Tensor) -> tuple[Tensor, Tensor]:
    """Random fields and the next ones: the sea drifts east, land takes the mean of its neighbours, ice stays."""
    laws = torch.zeros(3, 1, 3, 3)
    laws[0, 0, 1, 0], laws[1], laws[2, 0, 1, 1] = 1, 1 / 9, 1
    x = torch.randn(number, 1, HEIGHT, WIDTH)
    wrapped = pad(pad(x, (1, 1, 0, 0), mode="circular"), (0, 0, 1, 1))
    return x, conv2d(wrapped, laws).gather(1, where.expand(number, 1, HEIGHT, WIDTH))


def train(where: Tensor) -> tuple[list[np.ndarray], list[list[float]]]:
    """Routing of the layer before each step, and the errors over the variance of the layer and of a convolution."""
    torch.manual_seed(0)
    layer = smoe.SpatialMoE2d(
        1, 1, kernel_size=3, spatial_shape=(HEIGHT, WIDTH), num_candidates=3, padding_mode="longitude"
    )
    plain = nn.Sequential(nn.CircularPad2d((1, 1, 0, 0)), nn.Conv2d(1, 1, 3, padding=(1, 0)))
    nets: list[nn.Module] = [layer, plain]
    optimizers = [torch.optim.Adam(net.parameters(), lr=1e-2) for net in nets]
    maps: list[np.ndarray] = []
    errors: list[list[float]] = [[], []]
    for _ in range(NUM_STEPS + 1):
        maps.append(layer.routing().indices[0].numpy())
        x, target = pairs(16, where)
        for net, optimizer, curve in zip(nets, optimizers, errors, strict=True):
            loss = mse_loss(net(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append(loss.item() / target.var().item())
    return maps, errors


def film(path: Path) -> None:
    """Writes the film."""
    where = regions()
    maps, errors = train(where)
    # Experts have no order: each has the colour of the region that it serves in the end.
    orders = [np.array(order) for order in itertools.permutations(range(3))]
    order = max(orders, key=lambda order: (order[maps[-1]] == where.numpy()).sum())
    figure = Figure(figsize=(8, 3.8), dpi=100)
    canvas, frames = FigureCanvasAgg(figure), []
    style = {"cmap": ListedColormap(COLOURS), "norm": Normalize(-0.5, 2.5)}
    left, right = figure.add_axes((0.01, 0.36, 0.48, 0.56)), figure.add_axes((0.51, 0.36, 0.48, 0.56))
    draw_globe(left, LATITUDE, LONGITUDE, where.numpy(), **style)
    mesh = draw_globe(right, LATITUDE, LONGITUDE, order[maps[0]], **style)
    left.set_title("the truth: sea drifts, land smooths, ice stays", fontsize=11)
    curves = figure.add_axes((0.1, 0.125, 0.87, 0.2))
    curves.set(xlim=(0, NUM_STEPS), ylim=(3e-4, 3), yscale="log", xlabel="training step", yticks=(1e-3, 1))
    curves.set_ylabel("error /\nvariance", fontsize=10)
    curves.spines[["top", "right"]].set_visible(False)
    lines = [curves.plot([], [], color=colour, lw=2)[0] for colour in ("#0072b2", "#777777")]
    curves.legend(lines, ["SMoE layer", "convolution"], frameon=False, fontsize=9, loc="lower left", ncols=2)
    steps = [*range(0, 40, 2), *range(40, 100, 5), *range(100, NUM_STEPS + 1, 20)]
    for step in steps:
        shown = order[maps[step]]
        mesh.set_array(np.append(shown, shown[:, :1], axis=1))
        right.set_title(f"learned from pairs of fields: {100 * (shown == where.numpy()).mean():.1f} %", fontsize=11)
        for line, curve in zip(lines, errors, strict=True):
            line.set_data(range(step + 1), curve[: step + 1])
        canvas.draw()
        frames.append(Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3]))
    palette = frames[-1].quantize(48)
    frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    durations = [1500, *[140] * (len(frames) - 2), 4000]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)
    print(path, f"{path.stat().st_size / 1e3:.0f} kB,", right.get_title(), [f"{curve[-1]:.2g}" for curve in errors])


if __name__ == "__main__":
    film(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
