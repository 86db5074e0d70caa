"""Networks of the experiments."""

from smoe.models.spatial_moe_net import SpatialMoENet

__all__ = ["SpatialMoENet"]
