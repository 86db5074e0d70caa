"""Networks of the experiments."""

from smoe.models.spatial_moe_net import SpatialMoENet
from smoe.models.vision_transformer import VisionTransformer

__all__ = ["SpatialMoENet", "VisionTransformer"]
