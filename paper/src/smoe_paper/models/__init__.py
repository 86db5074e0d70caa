"""Networks of the experiments."""

from smoe_paper.models.conv_net import ConvNet
from smoe_paper.models.emos import Emos
from smoe_paper.models.fully_connected_net import FullyConnectedNet
from smoe_paper.models.image_classifier import ImageClassifier
from smoe_paper.models.resnet import ResNet, resnet50, wide_resnet50_2
from smoe_paper.models.spatial_moe_net import SpatialMoENet
from smoe_paper.models.vision_transformer import VisionTransformer
from smoe_paper.models.weather_resnet import WeatherResNet

__all__ = [
    "ConvNet",
    "Emos",
    "FullyConnectedNet",
    "ImageClassifier",
    "ResNet",
    "SpatialMoENet",
    "VisionTransformer",
    "WeatherResNet",
    "resnet50",
    "wide_resnet50_2",
]
