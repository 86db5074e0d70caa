"""Makes the networks, the data and the training task of a recipe that corrects ensembles."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch

from smoe.errors import DataError
from smoe.nn import LocalAffine
from smoe.regression import UNet, start_as_torch
from smoe.training.task import Metric, Task
from smoe_paper.baselines.layers import LearnedChannels
from smoe_paper.ens10 import recipes
from smoe_paper.ens10.store import EnsembleSamples, EnsembleStore
from smoe_paper.experiments.experiment import SPLITS, Notify
from smoe_paper.experiments.task import Learning, assemble_task, convert_net
from smoe_paper.losses import gaussian_crps_loss
from smoe_paper.metrics import EECRPS, GaussianCRPS
from smoe_paper.models import Emos


def open_store(data: recipes.EnsembleData) -> EnsembleStore:
    store = EnsembleStore.open_named(data.store)
    for name, wanted, found in (("task", data.task, store.task), ("members", data.members, store.num_members)):
        if wanted is not None and wanted != found:
            raise DataError(
                f"{store.path} is of {store.task} with {store.num_members} members, but data.{name} is {wanted}: name "
                f"another store, or prepare one with --{name} {wanted}"
            )
    return store


# Ranges by which ENS-10 scales the members for EMOS, in m2 s-2 and K.
VALUE_RANGES = {"z500": (48_200.0, 58_000.0), "t850": (240.0, 299.0), "t2m": (218.0, 304.0)}


def build_model(model: recipes.EnsembleModel, learning: Learning, store: EnsembleStore) -> torch.nn.Module:
    num_channels, grid = len(store.channels), store.grid.shape
    match model:
        case recipes.EmosModel():
            return Emos(store.num_members, VALUE_RANGES[store.task], grid, model.places)
        case recipes.PixelModel():
            return _make_pixel_net(model, num_channels, grid)
        case recipes.SpatialMoEUNetModel():
            return _convert(UNet(num_channels, filters=model.filters), model, learning, store)
    net = UNet(num_channels + model.learned_channels, filters=model.filters)
    if model.local_affine:
        _add_local_affine(net, grid)
    return torch.nn.Sequential(LearnedChannels(model.learned_channels, grid), net) if model.learned_channels else net


def _add_local_affine(net: UNet, grid: tuple[int, int]) -> None:
    levels = [*enumerate(net.encoder), *zip((2, 1, 0), net.decoder, strict=True)]
    for level, block in levels:
        for name in ("first", "second"):
            conv = getattr(block, name)
            affine = LocalAffine(len(conv.weight), (grid[0] >> level, grid[1] >> level))
            setattr(block, name, torch.nn.Sequential(conv, affine))


def _make_pixel_net(model: recipes.PixelModel, num_channels: int, grid: tuple[int, int]) -> torch.nn.Module:
    if not model.hidden:
        return MapOfErrors(grid)
    widths = (num_channels + model.embedding, model.hidden, model.hidden, 2)
    layers = [layer for pair in pairwise(widths) for layer in (torch.nn.Conv2d(*pair, 1), torch.nn.ReLU())]
    return torch.nn.Sequential(LearnedChannels(model.embedding, grid), *layers[:-1])


class MapOfErrors(torch.nn.Module):
    """Two learned numbers for each pixel, whatever the input."""

    def __init__(self, grid: tuple[int, int]) -> None:
        super().__init__()
        self.fields = LearnedChannels(2, grid)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.fields(input[:, :0])


def trunk(name: str) -> str:
    """Returns the part of a U-Net that a layer belongs to: `encoder`, `decoder` or `head`."""
    return name.partition(".")[0]


def _convert(
    net: UNet, model: recipes.SpatialMoEUNetModel, learning: Learning, store: EnsembleStore
) -> torch.nn.Module:
    return convert_net(
        net,
        model,
        learning,
        lambda layer: start_as_torch(layer.weight, layer.bias),
        example_input=torch.zeros(1, len(store.channels), *store.grid.shape),
        share_gates=model.share_gates,
        predicate=lambda name, _: trunk(name) != "head",
        group_of=trunk,
    )


def build_task(recipe: recipes.EnsembleRecipe, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Task:
    store = open_store(recipe.data)
    samples = {split: make_split(recipe, store, split, notify) for split in splits}
    return make_task(recipe, store, samples)


def make_task(recipe: recipes.EnsembleRecipe, store: EnsembleStore, samples: Mapping[str, EnsembleSamples]) -> Task:
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, Learning.of(recipe), store)
    metrics = make_scores(has_efi=store.efi is not None)
    return assemble_task(recipe, model, gaussian_crps_loss, metrics, samples)


def make_split(
    recipe: recipes.EnsembleRecipe, store: EnsembleStore, split: str, notify: Notify = print
) -> EnsembleSamples:
    """Returns the samples of a split: members for EMOS, otherwise statistics; with the EFI if the store has one."""
    data = recipe.data
    years = getattr(data, f"{split}_years")
    inputs = "members" if isinstance(recipe.model, recipes.EmosModel) else "statistics"
    samples = EnsembleSamples(store, years, inputs=inputs)
    store.tell_missing_years(split, years, notify)
    if split != "train" and samples.num_without_efi:
        notify(
            f"{split}: {samples.num_without_efi} of {len(samples)} forecasts have no extreme forecast index, and the "
            "EECRPS leaves them out"
        )
    return samples


def make_scores(*, has_efi: bool) -> list[Metric]:
    return [GaussianCRPS(), EECRPS()] if has_efi else [GaussianCRPS()]
