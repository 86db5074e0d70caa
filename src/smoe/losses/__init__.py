"""Losses for routing (RC, auxiliary, V-MoE), fields on a globe, ensembles and classifiers."""

from smoe.losses.auxiliary import auxiliary_loss, importance_loss, load_loss, spatial_agreement_loss
from smoe.losses.classification import CrossEntropy
from smoe.losses.crps import GaussianCRPSLoss, corrected_crps, ensemble_crps, gaussian_crps
from smoe.losses.latitude_weighted import LatitudeWeightedMSE, latitude_weights
from smoe.losses.patch_routing import patch_importance_loss, patch_load_loss, patch_moe_loss
from smoe.losses.routing_classification import routing_classification_loss, routing_labels

__all__ = [
    "CrossEntropy",
    "GaussianCRPSLoss",
    "LatitudeWeightedMSE",
    "auxiliary_loss",
    "corrected_crps",
    "ensemble_crps",
    "gaussian_crps",
    "importance_loss",
    "latitude_weights",
    "load_loss",
    "patch_importance_loss",
    "patch_load_loss",
    "patch_moe_loss",
    "routing_classification_loss",
    "routing_labels",
    "spatial_agreement_loss",
]
