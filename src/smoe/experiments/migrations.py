"""Recipes that earlier versions stored, in the form of this one. Imports no torch.

A stored recipe holds every field, with the version of the schema. A change of the schema (a field that is added,
renamed or removed) raises `SCHEMA` and adds a function here that turns the version before into it: a field that is
added gets the value that computes what was computed before, whatever the default of its class is. A field that changes
how a run computes, but not what, needs no new version, which would rename all stored runs: it is completed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

SCHEMA = 4
"""Version of the schema that this version writes."""

Plain = dict[str, Any]


class SchemaError(Exception):
    """A stored recipe of a version that is not known."""


def migrate_recipe(plain: Plain, schema: int) -> Plain:
    """The recipe in the form of `SCHEMA`; what is given is left as it is.

    Args:
        plain: Recipe as dictionaries, as it was stored.
        schema: Version of the schema it was stored with; 1 if none was stored.

    Raises:
        SchemaError: If the version is newer than this one.
    """
    if not 1 <= schema <= SCHEMA:
        raise SchemaError(f"the recipe has schema {schema}, but this version reads 1 to {SCHEMA}: update smoe")
    plain = copy.deepcopy(plain)
    for version in range(schema, SCHEMA):
        plain = _STEPS[version](plain)
    # What a stranger wrote in place of a training is refused later, with its name.
    if isinstance(plain.get("training"), dict):
        plain["training"] = {**_LATER_WITHOUT_EFFECT, **plain["training"]}
    return plain


# Fields of the training that have no effect on its result, and came while version 4 was in use.
_LATER_WITHOUT_EFFECT = {"sharding": "none"}

_EXPERIMENTS = {
    "HeatRecipe": "heat",
    "WeatherRecipe": "weather",
    "EnsembleRecipe": "ens10",
    "ImageRecipe": "images",
    "ImageNetRecipe": "imagenet",
}
# Fields that came while version 1 was in use, with the values of the time before.
_LATER_TRAINING = {
    "part_size": None,
    "schedule": "plateau",
    "warmup_epochs": 0,
    "warmup_start": 0.01,
    "min_lr": 0.0,
    "min_delta": 0.0,
    "average_every": None,
    "average_decay": 0.99998,
    "num_workers": 0,
}
_LATER_DATA: dict[str, Plain] = {"heat": {"unit": 1.0}}
_LATER_ROUTING = {"probe_window": 8, "probe_confidence": 0.0}


def _from_1_to_2(old: Plain) -> Plain:
    """Rules as objects of their own, one recipe for all experiments, one Adam, gates with further options."""
    experiment = _EXPERIMENTS[old.get("type", "HeatRecipe")]
    rule, damping = _rule({**_LATER_ROUTING, **old["routing"]})
    new: Plain = {
        "experiment": experiment,
        "data": {**_LATER_DATA.get(experiment, {}), **old["data"]},
        "model": _model(experiment, old["model"]),
        "rule": rule,
        "damping": damping,
        "routing_warmup_epochs": old.get("routing_warmup_epochs", 0),
        "auxiliary": old.get(
            "auxiliary", {"importance": False, "load": False, "spatial_agreement": False, "weight": 0.01}
        ),
        "optimizer": _optimizer(old["optimizer"]),
        "training": {**_LATER_TRAINING, **old["training"]},
        "init_from": old.get("init_from"),
        "seed": old["seed"],
    }
    if experiment == "heat":
        new["loss"] = old.get("loss", "mse")
    for name in ("weighs_latitudes", "label_smoothing", "augmentation"):
        if name in old:
            new[name] = old[name]
    return new


def _rule(routing: Plain) -> tuple[Plain, Plain | None]:
    """The rule, and the damping where the rule carries none."""
    # The first runs knew the RC loss only, and whether it was on.
    name = routing.get("training_rule", "rc" if routing.get("rc_loss", True) else "end_to_end")
    damping = None
    if routing["damping"] is not None:
        damping = {
            "factor": routing["damping"],
            "error_quantile": routing["error_quantile"],
            "tolerance": routing["damping_tolerance"],
            "tolerance_unit": routing["tolerance_unit"],
        }
    if name == "probe":
        # Probing and straight-through never damped.
        return {"type": "probe", "window": routing["probe_window"], "confidence": routing["probe_confidence"]}, None
    if name == "straight_through":
        return {"type": "straight_through", **_STRAIGHT_THROUGH}, None
    if name == "end_to_end":
        return {"type": "end_to_end"}, damping
    if name == "none" or (routing["rc_weight"] == 0.0 and damping is None):
        return {"type": "frozen"}, damping
    fields = {key: routing[key] for key in ("error_quantile", "tolerance", "tolerance_unit")}
    return {"type": "rc", **fields, "weight": routing["rc_weight"], "damping": damping}, None


# Of the comparison of one challenger with one selected expert, which has no temperature and takes all samples.
_STRAIGHT_THROUGH = {"temperature": 1.0, "share": 1.0}


def _optimizer(old: Plain) -> Plain:
    if "momentum" in old:
        return {"type": "SgdMomentum", **old}
    return {
        "type": "Adam",
        "lr": old["lr"],
        "betas": old["betas"],
        "eps": old.get("eps", 1e-8),
        "l2": old.get("l2", 0.0),
        "gate_lr": old.get("gate_lr"),
    }


# Networks whose SMoE layers had a bias for each output channel, and the gate's options of that time.
_GATED = {
    "AddedSpatialMoEModel",
    "SpatialMoEResNetModel",
    "SpatialMoEUNetModel",
    "SpatialMoEClassifierModel",
    "AddedSpatialMoEResNet50Model",
    "SpatialMoEResNet50Model",
}


def _model(experiment: str, old: Plain) -> Plain:
    kind = old.get("type", "SpatialMoEModel")
    if experiment == "heat" and kind == "SpatialMoEModel":
        return {"type": kind, **old, "rank": 8, "bias": "none"}
    return {**old, "rank": 8, "bias": "slot", "local_affine": False} if kind in _GATED else old


def _from_2_to_3(plain: Plain) -> Plain:
    """The straight-through rule draws experts with noise and starts unused experts anew; it did neither before."""
    if plain["rule"]["type"] == "straight_through":
        plain["rule"] = {"noise": 0.0, "patience": 0, **plain["rule"]}
    return plain


def _from_3_to_4(plain: Plain) -> Plain:
    """The noise of the straight-through rule grows during a warm-up; it was whole from the first pass on before."""
    rule = plain["rule"]
    if rule["type"] == "straight_through":
        # Without noise, the warm-up has no effect, and takes its default.
        plain["rule"] = {"warm_up": 0 if rule["noise"] > 0.0 else 100, **rule}
    return plain


_STEPS: dict[int, Callable[[Plain], Plain]] = {1: _from_1_to_2, 2: _from_2_to_3, 3: _from_3_to_4}
