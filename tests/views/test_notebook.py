"""What a notebook shows: pictures and tables, with the text escaped."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import torch
from matplotlib.image import imread
from torch import nn

import smoe
from smoe._notebook import NUM_DISTINCT, expert_colours, html_table
from smoe.regression._scores import ScoreTable


def pictures(page: str) -> list[np.ndarray]:
    found = re.findall(r"base64,([^\"]+)", page)
    return [np.rint(255 * imread(io.BytesIO(base64.b64decode(one)))[..., :3]).astype(np.uint8) for one in found]


def test_a_routing_map_is_a_picture_of_its_experts() -> None:
    layer = smoe.SpatialMoE2d(1, 1, num_candidates=3, spatial_shape=(5, 7))
    routing = layer.routing()
    (shown,) = pictures(routing._repr_html_())
    np.testing.assert_array_equal(shown, expert_colours(3)[routing.indices[0].numpy()])
    assert all(f"expert {number}: " in routing._repr_html_() for number in range(3))
    assert "SpatialMoE2d(" in layer._repr_html_() and len(pictures(layer._repr_html_())) == 1
    # A slot for each choice, of which four are shown.
    assert len(pictures(smoe.SpatialMoE2d(1, 6, spatial_shape=(5, 7))._repr_html_())) == 4
    assert pictures(smoe.SpatialMoE1d(1, 1, num_candidates=2, spatial_shape=(9,))._repr_html_())[0].shape == (1, 9, 3)


def test_a_plot_has_a_legend_where_experts_have_colours_of_their_own() -> None:
    figure = smoe.SpatialMoE2d(1, 1, num_candidates=2, spatial_shape=(5, 7)).routing().plot(title="two")
    legend, bars = figure.subfigs[0].axes[0].get_legend(), figure.subfigs[0].axes[1].patches
    assert [text.get_text() for text in legend.get_texts()] == ["expert 0", "expert 1"]
    assert {tuple(np.rint(255 * np.array(bar.get_facecolor()[:3])).astype(int)) for bar in bars} == {
        (0, 114, 178), (230, 159, 0),
    }  # fmt: skip
    # A notebook shows it without pyplot, too.
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert smoe.SpatialMoE2d(1, 4, spatial_shape=(5, 7)).plot().subfigs[0].axes[0].get_legend() is None


def test_tables_of_plans_descriptions_and_scores() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 1, 5, padding=2))
    plan = smoe.plan_conversion(net, example_input=torch.zeros(1, 1, 6, 6))
    assert "<td>0</td><td>2 of 4 experts</td><td>6 x 6</td>" in plan._repr_html_() and "stays" in plan._repr_html_()
    layer = smoe.SpatialMoE2d(1, 1, num_candidates=2, spatial_shape=(6, 6))
    page = smoe.describe(layer)._repr_html_()
    assert "<td>the model itself</td>" in page and "without data nothing can be said" in page
    assert page.count("1 of 2") == 1
    assert "no SMoE layers" in smoe.describe(net)._repr_html_()
    errors = {"model": (0.5,), "<b>zero</b>": (1.0,)}
    page = ScoreTable(("t",), ("K",), 3, errors, errors, errors, notes=("a note",))._repr_html_()
    assert '<tr style="font-weight:bold"><td>model</td><td>0.5</td>' in page and "<b>" not in page and "a note" in page


def test_colours_differ() -> None:
    assert len({tuple(colour) for colour in expert_colours(60).tolist()}) == 60
    assert expert_colours(3).shape == (3, 3) and NUM_DISTINCT == 12
    assert "&lt;i&gt;" in html_table(("a",), [("<i>",)])
