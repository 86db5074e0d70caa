"""A fitted regressor as a folder of two files: its config and its weights."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from smoe._files import FileLock, LockedError, checksum, reason_not_to_write, write_atomically
from smoe._json import RecipeError, from_plain, to_plain
from smoe.errors import DataError
from smoe.meshes import mesh_arrays, mesh_from_files, mesh_json
from smoe.regression._fitted import FOLDS, Fitted, Learned
from smoe.regression._ladder import num_channels
from smoe.regression._nets import count_shared_parameters, make_net, make_plain_net, wrap_own_net
from smoe.regression._options import MACHINE_OPTIONS, SIMPLE, RegressorOptions
from smoe.version import __version__

FORMAT, VERSION = "smoe-grid-regressor", 2
CONFIG, WEIGHTS = "config.json", "model.safetensors"
_NETS = ("net", "plain", *FOLDS)
_NEW_WEIGHTS, _LOCK_FILE = "model.safetensors.new", ".save.lock"
_ARRAY, _TEXT = "@array", "@text"
# Of a config beside what was learned.
_BESIDE = ("format", "version", "smoe", "description", "kept", "remarks", "mesh", "weights_sha256")


def _detached(value: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
    """Plain values, from which arrays of numbers are taken out, to `arrays` by their places."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf":
            return {_TEXT: value.astype(str).tolist()}
        arrays[place] = value
        return {_ARRAY: place}
    if isinstance(value, dict):
        return {key: _detached(each, f"{place}.{key}" if place else key, arrays) for key, each in value.items()}
    if isinstance(value, list):
        return [_detached(each, f"{place}.{number}", arrays) for number, each in enumerate(value)]
    return value


def _attached(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The inverse of `_detached`."""
    if isinstance(value, list):
        return [_attached(each, arrays) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_ARRAY}:
        return arrays[value[_ARRAY]]
    return np.asarray(value[_TEXT]) if value.keys() == {_TEXT} else {k: _attached(v, arrays) for k, v in value.items()}


def is_model_folder(path: Path) -> bool:
    """Whether a folder holds a fitted regressor."""
    try:
        return json.loads((path / CONFIG).read_text()).get("format") == FORMAT
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def save_model(fitted: Fitted, path: Path, *, overwrite: bool = False) -> None:
    """Writes a fitted regressor; a stop at any moment leaves a folder with the old model, the new one or none."""
    from safetensors.torch import save

    if path.exists() and not path.is_dir():
        raise DataError(f"{path} is a file: choose a folder for the model")
    if (path / CONFIG).exists() and not overwrite:
        raise DataError(f"{path} holds a model already: choose another folder, or set overwrite=True")
    arrays = {} if fitted.mesh is None else mesh_arrays(fitted.mesh)
    learned = Learned(**{each.name: getattr(fitted, each.name) for each in fields(Learned)})
    config = _detached(to_plain(learned), "", arrays)
    for name in MACHINE_OPTIONS:
        del config["options"][name]
    tensors = {name: torch.from_numpy(np.array(values, order="C")) for name, values in arrays.items()}
    for prefix, net in zip(_NETS, (fitted.net, fitted.plain, *fitted.folds), strict=False):
        if net is not None:
            state = net.state_dict()
            tensors |= {f"{prefix}.{name}": tensor.detach().cpu().clone() for name, tensor in state.items()}
    config |= {
        "format": FORMAT,
        "version": VERSION,
        "smoe": __version__,
        "description": fitted.describe(),
        "kept": fitted.kept,
        "remarks": list(fitted.remarks()),
        "mesh": None if fitted.mesh is None else mesh_json(fitted.mesh),
    }
    weights = save(tensors, {"format": "pt"})
    config = without_nan({**config, "weights_sha256": hashlib.sha256(weights).hexdigest()})
    text = json.dumps({**config, "checksum": checksum(config)}, indent=1, allow_nan=False) + "\n"
    try:
        path.mkdir(parents=True, exist_ok=True)
        with FileLock(path / _LOCK_FILE):
            write_atomically(path / _NEW_WEIGHTS, lambda file: file.write(weights))
            # From here on the folder holds the new model: until then it holds the old one.
            write_atomically(path / CONFIG, lambda file: file.write(text.encode()))
            os.replace(path / _NEW_WEIGHTS, path / WEIGHTS)
    except LockedError as error:
        raise DataError(f"{error.holder} saves a model in {path}: choose another folder") from error
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from error


def load_model(path: Path, own_net: nn.Module | None = None, transform: str | None = None) -> Fitted:
    """Reads what `save_model` wrote."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    config = _read_config(path)
    try:
        tensors = load(_read_weights(path, config["weights_sha256"]))
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path / WEIGHTS} is damaged: {error}") from error
    try:
        return _build(config, tensors, own_net, transform, path)
    except DataError:
        raise
    except RecipeError as error:
        raise DataError(f"{path / CONFIG} is not a model's config: {error}") from error
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise DataError(f"{path / CONFIG} is not a model's config: {type(error).__name__} {error}") from error
    except RuntimeError as error:
        raise DataError(f"the weights in {path} do not fit its config: {' '.join(str(error).split())}") from error


def _read_weights(path: Path, digest: str) -> bytes:
    """The weights that a config names by their SHA-256."""
    # A process that was killed while it saved has not renamed the weights.
    for name in (WEIGHTS, _NEW_WEIGHTS):
        if (path / name).is_file():
            weights = (path / name).read_bytes()
            if hashlib.sha256(weights).hexdigest() == digest:
                return weights
    if not (path / WEIGHTS).is_file():
        raise DataError(f"{path} has no {WEIGHTS}")
    raise DataError(f"{path / WEIGHTS} is damaged, or of another model: its checksum is not that of {CONFIG}")


def _read_config(path: Path) -> dict[str, Any]:
    place = path / CONFIG
    if not place.is_file():
        raise DataError(f"{path} is not a folder of a fitted model: it has no {CONFIG}")
    try:
        plain = json.loads(place.read_text())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is damaged: {error}") from error
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise DataError(f"{place} is not a model's config")
    if plain.get("version") != VERSION:
        raise DataError(f"{place} has version {plain.get('version')} of the format, this smoe reads version {VERSION}")
    if plain.pop("checksum", None) != checksum(plain):
        raise DataError(f"{place} was edited or damaged: its checksum does not fit")
    options = plain.get("options")
    if isinstance(options, dict):
        if of_machine := sorted(set(MACHINE_OPTIONS) & set(options)):
            raise DataError(f"{place} sets {of_machine[0]}, which a model may not choose: remove it")
        defaults = asdict(RegressorOptions())
        plain["options"] = {**{name: defaults[name] for name in MACHINE_OPTIONS}, **options}
    if missing := [name for name in _BESIDE if name not in plain]:
        raise DataError(f"{place} is not a model's config: it lacks the field {missing[0]!r}")
    return plain


def _build(
    config: dict[str, Any], tensors: dict[str, torch.Tensor], own_net: nn.Module | None, transform: str | None,
    path: Path,
) -> Fitted:  # fmt: skip
    of_nets = tuple(f"{name}." for name in _NETS)
    arrays = {name: tensor.numpy() for name, tensor in tensors.items() if not name.startswith(of_nets)}
    plain = _attached({name: value for name, value in config.items() if name not in _BESIDE}, arrays)
    learned: Learned = from_plain(Learned, plain)
    options, shape = learned.options, learned.shape
    if learned.base not in learned.ladder.rungs:
        raise RecipeError(f"base must be one of {', '.join(learned.ladder.rungs)}, got {learned.base!r}")
    if options.transform == "own":
        if transform is None:
            raise DataError(
                f"{path} was fitted with a transform of its user's own: give it as load(path, transform=(function, "
                "inverse))"
            )
        learned = replace(learned, options=replace(options, transform=transform))
    mesh = None if config["mesh"] is None else mesh_from_files(config["mesh"], arrays)
    if learned.has_own_net:
        if own_net is None:
            raise DataError(f"{path} was fitted with a net of its user's own: give it as load(path, net=...)")
        net = wrap_own_net(own_net, shape)
    else:
        _check_size(learned, _of(tensors, "net."))
        net = make_net(shape, options, mesh)
    net.load_state_dict(_of(tensors, "net."))
    plain_nets = []
    for name in _NETS[1:]:
        if state := _of(tensors, f"{name}."):
            plain_nets.append(make_plain_net(
                "resnet" if learned.has_own_net else options.net, shape, num_blocks=options.num_blocks,
                num_parameters=count_shared_parameters(net), mesh=mesh,
            ).eval())  # fmt: skip
            plain_nets[-1].load_state_dict(state)
    plain, folds = next(iter(plain_nets), None), tuple(plain_nets[1:])
    return Fitted(**vars(learned), net=net.eval(), plain=plain, folds=folds, mesh=mesh)


def _check_size(learned: Learned, state: dict[str, torch.Tensor]) -> None:
    """Refuses a config of a net that is larger than the weights beside it, before memory is taken for the net."""
    options, shape, num_values = learned.options, learned.shape, sum(tensor.numel() for tensor in state.values())
    # One filter of each expert, without its neighbours.
    width = shape.in_channels if options.net == "layer" else options.filters
    least = int(options.filters * options.num_experts) * width
    if options.net not in SIMPLE and (least > num_values or options.num_blocks > len(state)):
        raise RuntimeError(
            f"it describes {options.filters} filters of {options.num_experts:g} experts in {options.num_blocks} "
            f"blocks, but the weights are {num_values:,} numbers"
        )
    num_targets = len(learned.target_channels)
    num_inputs = num_channels(
        learned.ladder.design.anomalies.basis, len(learned.input_channels), num_targets,
        has_lead=learned.lead_scale is not None, is_own=learned.has_own_net,
    )  # fmt: skip
    expected = (num_inputs, num_targets * options.outputs_per_target, learned.input_mask.shape[1:])
    if (shape.in_channels, shape.out_channels, shape.grid) != expected or shape.num_targets != num_targets:
        raise RuntimeError(f"its net is {shape}, but inputs, targets and grid are {expected}")


def _of(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def check_folder(path: Path) -> None:
    """Refuses a folder that cannot hold a new model, before anything is fitted."""
    if path.exists() and not path.is_dir():
        raise DataError(f"{path} is a file: choose a folder")
    if (path / CONFIG).exists():
        raise DataError(f"{path} holds a model already: choose another folder")
    if (reason := reason_not_to_write(path)) is not None:
        raise DataError(f"{path} cannot be written: {reason}")


def without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinity; they are written as null."""
    if isinstance(value, dict):
        return {str(key): without_nan(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
