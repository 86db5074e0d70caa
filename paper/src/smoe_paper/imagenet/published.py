"""Results that the paper prints for ImageNet, as data. Imports nothing heavy."""

from __future__ import annotations

from smoe_paper.images.published import accuracy_result

_IMAGENET = "Table 4"

PUBLISHED = {
    "imagenet/resnet50": accuracy_result(80.83, 0.04, _IMAGENET),
    "imagenet/wide-resnet50": accuracy_result(81.76, 0.03, _IMAGENET),
    "imagenet/lrlcn": accuracy_result(80.90, 0.02, _IMAGENET),
    "imagenet/smoe-first": accuracy_result(80.85, 0.05, _IMAGENET),
    "imagenet/smoe-last": accuracy_result(80.91, 0.04, _IMAGENET),
    "imagenet/smoe": accuracy_result(81.33, 0.03, _IMAGENET),
}
