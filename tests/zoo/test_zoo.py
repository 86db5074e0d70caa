"""Networks of other packages, converted: what is converted, what is left and why, and that nothing else changes.

They need an environment of their own (`make zoo`), and are skipped without it. What is found is stored in
paper/results/bench/zoo.md, where rows of other networks stay as they are.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import smoe
from other_packages import load
from smoe_paper.benchmarks.timing import circumstances, origin, write_table

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

HEAD = "its input has no positions: it is not (B, *positions, C)"
POINT = "its output has one place only"
ROWS = "its rows are not the nodes"
POOLED = "its nodes are those that a pooling chose"
UNUSED = "the example input did not reach it"
OWN_FORWARD = "timm.layers.linear.Linear has a forward of its own and may do more than a Linear"


class Entry(NamedTuple):
    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (2, 3, 64, 64)
    reasons: tuple[str, ...] = ()
    more: tuple[torch.Tensor, ...] = ()  # what it takes besides


def vision(name: str, *reasons: str, shape: tuple[int, ...] = (2, 3, 64, 64), **options: Any) -> Entry:
    return Entry(lambda: load("torchvision").models.get_model(name, weights=None, **options), shape, reasons)


def segmentation(name: str, *reasons: str) -> Entry:
    return vision(name, *reasons, weights_backbone=None, num_classes=4)


def timm(name: str, *reasons: str, shape: tuple[int, ...] = (2, 3, 64, 64)) -> Entry:
    return Entry(lambda: load("timm").create_model(name, num_classes=10), shape, reasons)


def smp(kind: str, *reasons: str) -> Entry:
    def make() -> nn.Module:
        load("torchvision")  # with its stubs
        return getattr(load("segmentation_models_pytorch"), kind)("resnet18", encoder_weights=None)

    return Entry(make, reasons=reasons)


def monai(kind: str, num_axes: int, **options: Any) -> Entry:
    def make() -> nn.Module:
        load("monai")
        nets = importlib.import_module("monai.networks.nets")
        return getattr(nets, kind)(**{"spatial_dims": num_axes, "in_channels": 1, "out_channels": 2, **options})

    return Entry(make, (1, 1, *(16,) * 3) if num_axes == 3 else (1, 1, 32, 32))


def operator(package: str, kind: str, **options: Any) -> Entry:
    """A neural operator on a grid of the sphere."""

    def make() -> nn.Module:
        load("torchvision")  # with its stubs
        load(package.partition(".")[0])
        return getattr(importlib.import_module(package), kind)(**options)

    return Entry(make, (2, 3, 16, 32))


def diffusers(kind: str, *reasons: str, more: tuple[torch.Tensor, ...] = (), **options: Any) -> Entry:
    def make() -> nn.Module:
        load("torchvision")  # with its stubs
        return getattr(load("diffusers"), kind)(norm_num_groups=4, **options)

    return Entry(make, (2, options.get("in_channels", 3), 16, 16), reasons, more)


def transformers(kind: str, *reasons: str, size: int = 64, **options: Any) -> Entry:
    def make() -> nn.Module:
        load("torchvision")  # with its stubs
        package = load("transformers")
        base = kind.removesuffix("Model").removesuffix("ForSemanticSegmentation")
        return getattr(package, kind)(getattr(package, f"{base}Config")(**options))

    return Entry(make, (2, 3, size, size), reasons)


def graph(kind: str, *reasons: str, **options: Any) -> Entry:
    """A network of torch_geometric on a ring."""
    nodes = torch.arange(40)
    edges = torch.stack([nodes, (nodes + 1) % 40])

    def make() -> nn.Module:
        load("torch_geometric")
        models = importlib.import_module("torch_geometric.nn.models")
        return getattr(models, kind)(3, 8, *((4, 2) if kind == "GraphUNet" else (2, 4)), **options)

    return Entry(make, (40, 3), reasons, (torch.cat([edges, edges.flip(0)], dim=1),))


def flow() -> Entry:
    """A recurrent network of two images."""
    return vision("raft_small", shape=(1, 3, 128, 128))._replace(more=(torch.randn(1, 3, 128, 128),))


CHANNELS: dict[str, Any] = {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
TOKENS: dict[str, Any] = {"num_attention_heads": 2, "num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32}
FOURIER: dict[str, Any] = {"n_modes": (8, 16), "in_channels": 3, "out_channels": 2, "hidden_channels": 16}
SPHERE: dict[str, Any] = {"img_size": (16, 32), "in_chans": 3, "out_chans": 2, "embed_dim": 16, "scale_factor": 1}
PYRAMID = {"kernel_size": [3, 3, 3], "strides": [1, 2, 2], "upsample_kernel_size": [2, 2], "filters": [4, 8, 16]}
ZOO: dict[str, Entry] = {
    "resnet18": vision("resnet18", HEAD),
    "resnet50": vision("resnet50", HEAD),
    "resnext50": vision("resnext50_32x4d", HEAD),
    "densenet121": vision("densenet121", HEAD),
    "vgg11_bn": vision("vgg11_bn", HEAD),
    "alexnet": vision("alexnet", HEAD, shape=(2, 3, 96, 96)),
    "squeezenet1_1": vision("squeezenet1_1"),
    "googlenet": vision("googlenet", HEAD, aux_logits=False, init_weights=False),
    "efficientnet_b0": vision("efficientnet_b0", HEAD, POINT),
    "mobilenet_v2": vision("mobilenet_v2", HEAD),
    "mobilenet_v3_small": vision("mobilenet_v3_small", HEAD, POINT),
    "mnasnet0_5": vision("mnasnet0_5", HEAD),
    "regnet_y_400mf": vision("regnet_y_400mf", HEAD, POINT),
    "shufflenet_v2": vision("shufflenet_v2_x0_5", HEAD),
    "convnext_tiny": vision("convnext_tiny", HEAD),
    "swin_t": vision("swin_t", HEAD, UNUSED),
    "vit_b_16": vision("vit_b_16", HEAD, UNUSED, image_size=64),
    "deeplabv3_mobilenet": segmentation("deeplabv3_mobilenet_v3_large", POINT),
    "fcn_resnet50": segmentation("fcn_resnet50"),
    "lraspp_mobilenet": segmentation("lraspp_mobilenet_v3_large", POINT),
    "r3d_18": vision("r3d_18", HEAD, shape=(2, 3, 4, 32, 32)),
    "r2plus1d_18": vision("r2plus1d_18", HEAD, shape=(2, 3, 4, 32, 32)),
    "maxvit_t": vision("maxvit_t", HEAD, POINT, shape=(1, 3, 224, 224)),
    "inception_v3": vision("inception_v3", HEAD, POINT, shape=(2, 3, 128, 128), aux_logits=False, init_weights=False),
    "raft_small": flow(),
    "timm resnet10t": timm("resnet10t", HEAD),
    "timm convnextv2_atto": timm("convnextv2_atto", HEAD),
    "timm hrnet_w18_small": timm("hrnet_w18_small", HEAD),
    "timm resnetv2_50": timm("resnetv2_50", POINT),
    "timm ghostnet_100": timm("ghostnet_100", OWN_FORWARD, POINT),
    "timm repvgg_a0": timm("repvgg_a0", HEAD),
    "timm resnest14d": timm("resnest14d", HEAD, POINT),
    "timm poolformer_s12": timm("poolformer_s12", HEAD),
    "timm focalnet_tiny": timm("focalnet_tiny_srf", HEAD),
    "timm mobilevit_xxs": timm("mobilevit_xxs", HEAD, POINT),
    "timm pvt_v2_b0": timm("pvt_v2_b0", HEAD),
    "timm efficientvit_b0": timm("efficientvit_b0", HEAD),
    "timm mixer_s32": timm("mixer_s32_224", HEAD, shape=(2, 3, 224, 224)),
    "smp Unet": smp("Unet"),
    "smp UnetPlusPlus": smp("UnetPlusPlus"),
    "smp DeepLabV3Plus": smp("DeepLabV3Plus", POINT),
    "smp FPN": smp("FPN"),
    "smp Linknet": smp("Linknet"),
    "smp UPerNet": smp("UPerNet", POINT),
    "smp Segformer": smp("Segformer"),
    "monai UNet": monai("UNet", 2, channels=(8, 16, 32), strides=(2, 2), num_res_units=2),
    "monai UNet, volume": monai("UNet", 3, channels=(4, 8, 16), strides=(2, 2), num_res_units=2),
    "monai DynUNet": monai("DynUNet", 2, **PYRAMID),
    "monai DynUNet, volume": monai("DynUNet", 3, **PYRAMID),
    "monai VNet": monai("VNet", 2),
    "monai SegResNet": monai("SegResNet", 2, init_filters=8),
    "monai BasicUNet": monai("BasicUNet", 2, features=(8, 8, 16, 16, 32, 8)),
    "monai HighResNet": monai("HighResNet", 2),
    "monai AttentionUnet": monai("AttentionUnet", 2, channels=(8, 16, 32), strides=(2, 2)),
    "diffusers UNet2DModel": diffusers(
        "UNet2DModel",
        HEAD,
        more=(torch.tensor(3),),
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
    ),
    "diffusers AutoencoderKL": diffusers(
        "AutoencoderKL",
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    ),
    "transformers Segformer": transformers("SegformerForSemanticSegmentation", **CHANNELS, decoder_hidden_size=16),
    "transformers ConvNext": transformers("ConvNextModel", **CHANNELS),
    "transformers ViT": transformers("ViTModel", HEAD, size=32, image_size=32, patch_size=8, **TOKENS),
    "transformers DPT": transformers(
        "DPTModel", HEAD, image_size=64, is_hybrid=False, backbone_out_indices=[0, 1], **TOKENS
    ),
    "transformers Swinv2": transformers(
        "Swinv2Model", size=32, image_size=32, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4
    ),
    "neuraloperator FNO": operator("neuralop.models", "FNO", **FOURIER),
    "neuraloperator TFNO": operator("neuralop.models", "TFNO", **FOURIER),
    "neuraloperator SFNO": operator("neuralop.models", "SFNO", **FOURIER),
    "torch-harmonics SFNO": operator("torch_harmonics.examples.models", "SphericalFourierNeuralOperator", **SPHERE),
    "torch-harmonics LSNO": operator("torch_harmonics.examples.models", "LocalSphericalNeuralOperator", **SPHERE),
    "PyG GCN": graph("GCN"),
    "PyG GraphSAGE": graph("GraphSAGE"),
    "PyG GIN": graph("GIN"),
    "PyG GAT": graph("GAT"),
    "PyG GraphUNet": graph("GraphUNet", POOLED),
    "PyG PNA": graph("PNA", ROWS, aggregators=["mean", "max"], scalers=["identity"], deg=torch.tensor([0, 0, 40])),
}


def tensors(output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output]
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return [part for each in values for part in tensors(each)]


TABLE = Path(__file__).parents[2] / "paper/results/bench/zoo.md"
COLUMNS = (
    *("network", "converted / left", "share", "parameters, M", "step", "expected", "evaluation", "training"),
    *("torch.compile", "torch.export", "left because"),
)
SHORT = {
    HEAD: "no positions",
    POINT: "one place",
    ROWS: "rows are edges",
    POOLED: "pooled nodes",
    UNUSED: "not called",
    OWN_FORWARD: "own forward",
}
NOTES = (
    "Converted with `kernel_size=None, linear=True`. Share: of the multiply-adds. Step: processor time of a training "
    "step over that of the network as it was, least of two, batches of one to four; expected: by the plan. Evaluation, "
    "training: largest difference from the network as it was over its largest output, training without dropout. "
    "torch.compile: one graph (backend `eager`), equal outputs; torch.export: not strict, equal outputs. No positions: "
    "a head, or an embedding of time; one place: squeeze-and-excitation; not called: the network reads its weights."
)


@pytest.fixture
def rows() -> Iterator[dict[str, dict[str, Any]]]:
    """Rows of the table by network; at the end they are stored beside those measured before."""
    found: dict[str, dict[str, Any]] = {}
    yield found
    if found:
        stored = TABLE.with_suffix(".jsonl")
        known = map(json.loads, stored.read_text().splitlines() if stored.exists() else [])
        found = {**{row["network"]: row for row in known}, **found}
        order = [found[name] for name in ZOO if name in found]
        write_table(TABLE, "Networks of other packages", "make zoo", COLUMNS, order, f"{NOTES} {origin(order[-1])}")


def difference(expected: Any, found: Any) -> float:
    pairs = zip(tensors(expected), tensors(found), strict=True)
    return max(float((old - new).abs().max()) / max(float(old.abs().max()), 1e-30) for old, new in pairs)


def without_dropout(net: nn.Module) -> nn.Module:
    """Training mode of what normalises and of the layers only."""
    net.eval()
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm | smoe.nn.RoutedLayer):
            module.training = True
    return net


def step_seconds(net: nn.Module, inputs: tuple[torch.Tensor, ...]) -> float:
    """Processor time of a training step."""
    optimizer = torch.optim.SGD(net.train().parameters(), lr=0.0)
    times = []
    for _ in range(3):
        started = time.process_time()
        optimizer.zero_grad()
        sum(part.square().mean() for part in tensors(net(*inputs)) if part.requires_grad).backward()  # type: ignore[union-attr]
        optimizer.step()
        times.append(time.process_time() - started)
    return min(times[1:])


def outcome(net: nn.Module, plain: nn.Module, inputs: tuple[torch.Tensor, ...], make: Callable[..., Any]) -> str:
    """`yes` if what `make` makes of the network computes the same; otherwise whose fault it is, in one line."""
    with torch.no_grad():
        try:
            found = make(net)(*inputs)
        except Exception as error:
            # tltorch's tensors are in the way of export where a module, here an embedding, has two names.
            reason = " ".join(str(error).split())[:80]
            for other, found in ((smoe.freeze(net), "once frozen"), (plain, f"no: {reason}")):
                with contextlib.suppress(Exception):
                    make(other)(*inputs)
                    return found
            return "no, nor of the network as it was"
        assert difference(net(*inputs), found) <= 1e-4
    return "yes"


def compiled(net: nn.Module) -> Any:
    torch._dynamo.reset()
    return torch.compile(net, backend="eager", fullgraph=True)


@pytest.mark.parametrize("name", ZOO)
def test_every_layer_is_converted_or_has_a_reason(name: str, rows: dict[str, dict[str, Any]]) -> None:
    torch.manual_seed(0)
    entry = ZOO[name]
    net, x = entry.make().eval(), torch.randn(entry.shape)
    example = (x, *entry.more) if entry.more else x
    inputs = (x, *entry.more)
    plan = smoe.plan_conversion(net, example_input=example, kernel_size=None, linear=True)
    left = {layer: reason for layer, reason in plan.left.items() if reason not in entry.reasons}
    assert plan.changes and not left
    # convert compares what both networks compute, in evaluation and in training.
    converted = smoe.convert(net, example_input=example, kernel_size=None, linear=True).eval()
    with torch.no_grad():
        evaluation = difference(net(*inputs), converted(*inputs))
        batch = tuple(each.repeat(2, *(1,) * (each.ndim - 1)) if each.ndim > 2 else each for each in inputs)
        training = difference(
            without_dropout(copy.deepcopy(net))(*batch), without_dropout(copy.deepcopy(converted))(*batch)
        )
    assert evaluation <= 1e-4 and training <= 1e-3
    copy.deepcopy(converted).load_state_dict(converted.state_dict())
    trained = copy.deepcopy(converted)
    step = step_seconds(trained, batch) / step_seconds(copy.deepcopy(net), batch)
    layers = [module for module in trained.modules() if isinstance(module, smoe.nn.RoutedLayer)]
    assert len(layers) == len(plan.changes)
    assert all(layer.weight.grad is not None for layer in layers)
    sizes = [sum(each.numel() for each in network.parameters()) / 1e6 for network in (net, converted)]
    for network in (converted, net):
        network.requires_grad_(False)
    rows[name] = {
        "network": name,
        "converted / left": f"{len(plan.changes)} / {len(plan.left)}",
        "share": f"{plan.share:.2f}",
        "parameters, M": " to ".join(f"{size:.3g}" for size in sizes),
        "step": f"{step:.1f}",
        "expected": f"{plan.price:.1f}",
        "evaluation": f"{evaluation:.0e}",
        "training": f"{training:.0e}",
        "torch.compile": outcome(converted, net, inputs, compiled),
        "torch.export": outcome(
            converted, net, inputs, lambda network: torch.export.export(network, inputs, strict=False).module()
        ),
        "left because": ", ".join(
            f"{SHORT[reason]} {number}" for reason, number in Counter(plan.left.values()).items()
        ),
        **circumstances(),
    }
    assert not rows[name]["torch.compile"].startswith("no:") and not rows[name]["torch.export"].startswith("no:")
