"""Networks of the experiments."""

from smoe_paper.models.nets import ConvNet, Emos, FullyConnectedNet, ImageClassifier, SpatialMoENet
from smoe_paper.models.resnet import ResNet
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
]
