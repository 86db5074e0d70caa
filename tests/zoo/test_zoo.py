"""Networks of other packages, converted: what is converted, what is left and why, and that nothing else changes.

They need an environment of their own (`make zoo`), and are skipped without it. torchvision's wheel is built for CUDA
and, beside the CPU build of torch, misses operators that it describes when it is imported: stubs stand for them.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import smoe

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

_STUBS: list[torch.library.Library] = []
HEAD = "its input has no positions: it is not (B, *positions, C)"
POINT = "its output has one place only"
UNUSED = "no batch (B, C, *grid) of the example input reached it"


def load(package: str) -> Any:
    if not _STUBS:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _STUBS.append(library)
    return pytest.importorskip(package, reason="make zoo installs it", exc_type=ImportError)


class Entry(NamedTuple):
    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (2, 3, 64, 64)
    reasons: tuple[str, ...] = ()


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
    "timm resnet10t": timm("resnet10t", HEAD),
    "timm convnextv2_atto": timm("convnextv2_atto", HEAD),
    "timm hrnet_w18_small": timm("hrnet_w18_small", HEAD),
    "timm resnetv2_50": timm("resnetv2_50", POINT),
    "timm ghostnet_100": timm("ghostnet_100", "Linear has a forward of its own and may do more than a Linear", POINT),
    "timm mixer_s32": timm("mixer_s32_224", HEAD, shape=(2, 3, 224, 224)),
    "smp Unet": smp("Unet"),
    "smp UnetPlusPlus": smp("UnetPlusPlus"),
    "smp DeepLabV3Plus": smp("DeepLabV3Plus", POINT),
    "smp FPN": smp("FPN"),
    "smp Linknet": smp("Linknet"),
    "monai UNet": monai("UNet", 2, channels=(8, 16, 32), strides=(2, 2), num_res_units=2),
    "monai UNet, volume": monai("UNet", 3, channels=(4, 8, 16), strides=(2, 2), num_res_units=2),
    "monai DynUNet": monai("DynUNet", 2, **PYRAMID),
    "monai DynUNet, volume": monai("DynUNet", 3, **PYRAMID),
    "monai VNet": monai("VNet", 2),
    "monai SegResNet": monai("SegResNet", 2, init_filters=8),
    "monai BasicUNet": monai("BasicUNet", 2, features=(8, 8, 16, 16, 32, 8)),
    "monai AttentionUnet": monai("AttentionUnet", 2, channels=(8, 16, 32), strides=(2, 2)),
}


def tensors(output: Any) -> list[torch.Tensor]:
    if isinstance(output, dict):
        return [part for each in output.values() for part in tensors(each)]
    return [output] if isinstance(output, torch.Tensor) else [part for each in output for part in tensors(each)]


@pytest.mark.parametrize("name", ZOO)
def test_every_layer_is_converted_or_has_a_reason(name: str) -> None:
    torch.manual_seed(0)
    entry = ZOO[name]
    net, x = entry.make().eval(), torch.randn(entry.shape)
    plan = smoe.plan_conversion(net, example_input=x, kernel_size=None, linear=True)
    left = {layer: reason for layer, reason in plan.left.items() if reason not in entry.reasons}
    assert plan.changes and not left
    # convert compares what both networks compute, in evaluation and in training.
    converted = smoe.convert(net, example_input=x, kernel_size=None, linear=True).eval()
    with torch.no_grad():
        for old, new in zip(tensors(net(x)), tensors(converted(x)), strict=True):
            assert float((old - new).abs().max()) <= 1e-4 * float(old.abs().max())
    copy.deepcopy(converted).load_state_dict(converted.state_dict())
    sum(part.square().mean() for part in tensors(converted.train()(x.repeat(2, *(1,) * (x.ndim - 1))))).backward()  # type: ignore[union-attr]
    layers = [module for module in converted.modules() if isinstance(module, smoe.nn.RoutedLayer)]
    assert len(layers) == len(plan.changes)
    assert all(layer.weight.grad is not None for layer in layers)
