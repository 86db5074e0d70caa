"""Networks of the experiments."""

from smoe.models.conv_net import ConvNet
from smoe.models.emos import Emos
from smoe.models.fully_connected_net import FullyConnectedNet
from smoe.models.image_classifier import ImageClassifier
from smoe.models.resnet import ResNet, resnet50, wide_resnet50_2
from smoe.models.spatial_moe_net import SpatialMoENet
from smoe.models.vision_transformer import VisionTransformer
from smoe.models.weather_resnet import WeatherResNet

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
