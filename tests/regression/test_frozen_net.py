"""The net of a fitted regressor can be frozen and exported."""

from __future__ import annotations

import torch

import smoe
from gridded_files import regional


def test_the_net_of_a_regressor_is_frozen_and_exported() -> None:
    model = smoe.GridRegressor(max_epochs=1, keep="smoe", device="cpu", progress=False, filters=4)
    model.fit(regional(30, 4, 6, seed=1), regional(30, 4, 6, seed=2))
    frozen = smoe.freeze(model.net)
    layers = [module for module in frozen.modules() if isinstance(module, smoe.nn.RoutedLayer)]
    assert layers and all(isinstance(layer.gate, smoe.DecidedGate) for layer in layers)
    example = torch.randn(3, model.fitted.shape.in_channels, *model.fitted.shape.grid)
    assert torch.equal(frozen(example), model.net(example))
    program = torch.export.export(frozen, (example,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    for num_samples in (1, 5):
        samples = torch.randn(num_samples, *example.shape[1:])
        torch.testing.assert_close(program.module()(samples), frozen(samples), rtol=1e-4, atol=1e-5)
