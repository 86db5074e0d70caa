"""What the gates of a trained weather network learned: which layers need their routing, and what the embedding knows.

Run: smoe bench learned-places RUN, where RUN is a folder of `smoe train weather/...` with SMoE layers. Prints the
tables and stores them in results/weather, with a picture of routing and embedding beside land, height and latitude.

- *Worth of a layer's routing*: the loss on test samples with every pixel of this layer on the commonest expert of each
  slot, over the loss with the routing as it is. The other layers keep theirs.
- *Explained by the embedding*: share of the variance of a field of the earth that a linear function of the pixels'
  embedding explains (R squared); beside it that of as many random numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from torch import Tensor

from smoe._files import write_atomically
from smoe.benchmarks.stored_table import circumstances
from smoe.diagnostics.routing_gain import on_commonest_experts
from smoe.errors import DataError
from smoe.experiments.runs import OpenRun, open_run
from smoe.nn import FactorisedGate, RoutedLayer, SpatialGate
from smoe.paper.weather.evaluate import samples_of
from smoe.training.prediction import predict_split

FOLDER = Path("results/weather")


def fields_of_the_earth(run: OpenRun) -> dict[str, np.ndarray]:
    """Fields `(H, W)` with which the embedding is compared."""
    samples, _ = samples_of(run, "test")
    store = samples.store
    latitudes = np.broadcast_to(np.asarray(store.grid.latitude)[:, None], store.metadata.shape[2:])
    fields = {
        "land": store.raw_constant("lsm"),
        "height": store.raw_constant("orography"),
        "latitude": latitudes,
        "distance from the equator": np.abs(latitudes),
    }
    return {name: np.asarray(field, np.float64) for name, field in fields.items()}


def explained(embedding: np.ndarray, field: np.ndarray) -> float:
    """R squared of a field `(P,)` as a linear function of numbers `(R, P)` and a constant."""
    numbers = np.concatenate([embedding, np.ones((1, embedding.shape[1]))])
    coefficients, *_ = np.linalg.lstsq(numbers.T, field, rcond=None)
    return float(1.0 - ((field - coefficients @ numbers) ** 2).mean() / field.var())


def worth_of_layers(run: OpenRun) -> Iterator[tuple[str, float]]:
    """Name of each layer, and the loss without its routing over that with it; `all` for all layers together."""
    layers = {name: module for name, module in run.task.model.named_modules() if isinstance(module, RoutedLayer)}
    if not layers:
        raise DataError(f"{run.directory.path}: the network has no SMoE layers")
    whole = _loss(run, ())
    for name, layer in layers.items():
        yield name, _loss(run, (layer.gate,)) / whole
    yield "all", _loss(run, {layer.gate for layer in layers.values()}) / whole


def _loss(run: OpenRun, gates: Iterable[SpatialGate]) -> float:
    """Sum of the loss over the test samples, with every pixel on the commonest experts of these gates."""
    with ExitStack() as stack:
        for gate in gates:
            stack.enter_context(gate.replaced_routing(on_commonest_experts))
        return sum(
            float(run.task.loss(prediction, target)) * len(target)
            for prediction, target in predict_split(run.task, run.recipe.training, "test")
        )


def embeddings_of(run: OpenRun) -> dict[str, Tensor]:
    """Each embedding of the network, under the name of the first layer that uses it."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, module in run.task.model.named_modules():
        if isinstance(module, RoutedLayer) and isinstance(module.gate, FactorisedGate):
            embedding = module.gate.embedding
            found.setdefault(id(embedding), (name, embedding.values.detach()))
    return dict(found.values())


def report(run: OpenRun, picture: Path) -> str:
    """The tables as Markdown; draws the picture.

    Args:
        run: A trained weather network with SMoE layers.
        picture: Picture to write.
    """
    fields, embeddings = fields_of_the_earth(run), embeddings_of(run)
    lines = [
        "# What the gates of a weather network learned",
        "Made by `smoe bench learned-places RUN`. "
        f"{type(run.recipe.model).__name__} with {run.recipe.rule}, seed {run.recipe.seed}, lead of "
        f"{run.recipe.data.lead_hours} hours.",
        "Loss on the test year without the routing of one layer (every pixel on the commonest expert of each slot), "
        "over the loss with it:",
        "| layer | loss without its routing |\n|---|---|",
    ]
    lines[-1] += "".join(f"\n| {name} | {worth:.2f} |" for name, worth in worth_of_layers(run))
    lines += [
        "Share of the variance of a field that a linear function of the embedding explains, beside that of as many "
        "random numbers for each pixel:",
        "| embedding | " + " | ".join(fields) + " |\n|---|" + "---|" * len(fields),
    ]
    generator = np.random.default_rng(0)
    for name, values in embeddings.items():
        numbers = values.flatten(1).double().numpy()
        for label, known in ((name, numbers), ("random numbers", generator.standard_normal(numbers.shape))):
            shares = (f"{explained(known, field.ravel()):.2f}" for field in fields.values())
            lines[-1] += f"\n| {label} | " + " | ".join(shares) + " |"
    if embeddings:
        draw(run, fields, next(iter(embeddings.values())), picture)
        lines.append(f"![Embedding and routing beside fields of the earth]({picture.name})")
    lines.append(", ".join(f"{key} {value}" for key, value in circumstances().items()) + ".")
    return "\n\n".join(lines) + "\n"


def draw(run: OpenRun, fields: dict[str, np.ndarray], embedding: Tensor, path: Path) -> None:
    """Draws the four largest principal components of an embedding beside the fields."""
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    from smoe.views.globe import draw_globe
    from smoe.views.picture import save_picture

    samples, _ = samples_of(run, "test")
    grid = samples.store.grid
    numbers = embedding.flatten(1).double().numpy()
    numbers = numbers - numbers.mean(axis=1, keepdims=True)
    _, _, components = np.linalg.svd(numbers, full_matrices=False)
    shown = {f"component {number + 1} of the embedding": component for number, component in enumerate(components[:4])}
    figure = Figure(figsize=(16, 6), layout="constrained")
    for place, (title, values) in enumerate({**fields, **shown}.items()):
        axes = figure.add_subplot(2, 4, place + 1)
        low, high = np.quantile(values, [0.02, 0.98])
        draw_globe(axes, grid.latitude, grid.longitude, values.reshape(embedding.shape[1:]), norm=Normalize(low, high))
        axes.set_title(title, fontsize=10)
    save_picture(figure, path)


def main(args: list[str] | None = None) -> None:
    """Measures one run and stores its report."""
    parser = argparse.ArgumentParser("smoe bench learned-places", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a run of `smoe train weather/...`")
    parser.add_argument("--output", type=Path, default=FOLDER / "learned_places.md", help="Markdown file to write")
    arguments = parser.parse_args(args)
    run = open_run(arguments.run, splits=("test",), notify=lambda _: None)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    text = report(run, arguments.output.with_suffix(".png"))
    write_atomically(arguments.output, lambda file: file.write(text.encode()))
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
