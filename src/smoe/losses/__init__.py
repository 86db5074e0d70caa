"""Losses of the routing: routing classification, the auxiliary losses of the paper's appendix, and V-MoE's."""

from smoe.losses.auxiliary import auxiliary_loss, importance_loss, load_loss, spatial_agreement_loss
from smoe.losses.patch_routing import patch_importance_loss, patch_load_loss, patch_moe_loss
from smoe.losses.routing_classification import routing_classification_loss, routing_labels

__all__ = [
    "auxiliary_loss",
    "importance_loss",
    "load_loss",
    "patch_importance_loss",
    "patch_load_loss",
    "patch_moe_loss",
    "routing_classification_loss",
    "routing_labels",
    "spatial_agreement_loss",
]
