"""Losses of the routing: routing classification, and the auxiliary losses of the paper's appendix."""

from smoe.losses.auxiliary import auxiliary_loss, importance_loss, load_loss, spatial_agreement_loss
from smoe.losses.routing_classification import routing_classification_loss, routing_labels

__all__ = [
    "auxiliary_loss",
    "importance_loss",
    "load_loss",
    "routing_classification_loss",
    "routing_labels",
    "spatial_agreement_loss",
]
