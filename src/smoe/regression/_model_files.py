"""A fitted regressor as two files: `model.safetensors` with all numbers and `config.json` with all words."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from smoe._files import FileLock, LockedError, write_atomically
from smoe._integrity import checksum
from smoe._plain import RecipeError, from_plain
from smoe.errors import DataError
from smoe.gridded import Channel, grid_from_plain, grid_to_plain
from smoe.meshes import Mesh, mesh_arrays, mesh_from_files, mesh_words
from smoe.regression._fitted import Fitted, Kept
from smoe.regression._ladder import Ladder, LadderWords, num_channels
from smoe.regression._layout import OutputLayout
from smoe.regression._nets import NetShape, Regression, count_shared_parameters, make_net, make_plain_net, wrap_own_net
from smoe.regression._options import MACHINE_OPTIONS, SIMPLE, RegressorOptions
from smoe.regression._scores import without_nan
from smoe.regression._statistics import Statistics
from smoe.version import __version__

FORMAT, VERSION = "smoe-grid-regressor", 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
_NEW_WEIGHTS, _LOCK_FILE = "model.safetensors.new", ".save.lock"
# What a config and a fitted regressor have alike.
_SAME = ("base", "kept", "validation", "verdict", "has_own_net", "lead_scale", "calendar", "periods", "records",
         "trained", "samples", "notes", "weakness")  # fmt: skip


@dataclass(frozen=True)
class _Config:
    """Content of `config.json`; what `smoe.regression._fitted.Fitted` holds has the same name."""

    format: str
    version: int
    smoe: str
    description: str
    options: RegressorOptions
    net: NetShape
    has_own_net: bool
    ladder: LadderWords
    base: str
    kept: Kept
    validation: dict[str, float]
    verdict: str
    has_alone: bool
    remarks: tuple[str, ...]
    plain_parameters: int | None
    inputs: tuple[Channel, ...]
    targets: tuple[Channel, ...]
    grid: dict[str, Any]
    mesh: dict[str, Any] | None
    layout: dict[str, Any]
    lead_scale: float | None
    calendar: str
    periods: dict[str, str]
    bounds: dict[str, list[int]]
    records: dict[str, list[dict[str, Any]]]
    trained: tuple[int, int]
    samples: dict[str, int]
    notes: tuple[str, ...]
    weakness: str | None
    weights_sha256: str


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
    layout, layout_arrays = fitted.layout.to_plain()
    arrays = {f"statistics.{name}": getattr(fitted.statistics, name) for name in Statistics.names()}
    arrays |= layout_arrays | {"grid.rows": fitted.grid.rows, "grid.columns": fitted.grid.columns}
    ladder, ladder_arrays = fitted.ladder.to_plain()
    arrays |= ladder_arrays | {"static": fitted.static, "input_mask": fitted.input_mask}
    if fitted.mesh is not None:
        arrays |= mesh_arrays(fitted.mesh)
    tensors = {name: torch.from_numpy(np.array(values)) for name, values in arrays.items()}
    for prefix, net in (("net", fitted.net), ("plain", fitted.plain), ("alone", fitted.alone)):
        if net is not None:
            state = net.state_dict()
            tensors |= {f"{prefix}.{name}": tensor.detach().cpu().clone() for name, tensor in state.items()}
    config = {
        "format": FORMAT,
        "version": VERSION,
        "smoe": __version__,
        "description": fitted.describe(),
        "options": {name: value for name, value in asdict(fitted.options).items() if name not in MACHINE_OPTIONS},
        "net": asdict(fitted.shape),
        "ladder": ladder,
        **{name: getattr(fitted, name) for name in _SAME},
        "has_alone": fitted.alone is not None,
        "remarks": list(fitted.remarks()),
        "plain_parameters": None if fitted.plain is None else count_shared_parameters(fitted.net),
        "inputs": [asdict(channel) for channel in fitted.input_channels],
        "targets": [asdict(channel) for channel in fitted.target_channels],
        "grid": grid_to_plain(fitted.grid),
        "mesh": None if fitted.mesh is None else mesh_words(fitted.mesh),
        "layout": layout,
        "bounds": {name: list(bounds) for name, bounds in fitted.bounds.items()},
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


def load_model(path: Path, own_net: nn.Module | None = None) -> Fitted:
    """Reads what `save_model` wrote."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    config = _read_config(path)
    try:
        tensors = load(_read_weights(path, config.weights_sha256))
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path / WEIGHTS} is damaged: {error}") from error
    try:
        return _build(config, tensors, own_net, path)
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


def _read_config(path: Path) -> _Config:
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
    try:
        return from_plain(_Config, plain)
    except RecipeError as error:
        raise DataError(f"{place} is not a model's config: {error}") from error


def _build(config: _Config, tensors: dict[str, torch.Tensor], own_net: nn.Module | None, path: Path) -> Fitted:
    options, shape, is_own = config.options, config.net, config.has_own_net
    if is_own and own_net is None:
        raise DataError(f"{path} was fitted with a net of its user's own: give it as load(path, net=...)")
    of_nets = ("net.", "plain.", "alone.")
    arrays = {name: tensor.numpy() for name, tensor in tensors.items() if not name.startswith(of_nets)}
    mesh = None if config.mesh is None else mesh_from_files(config.mesh, arrays)
    if is_own and own_net is not None:
        net = wrap_own_net(own_net, shape)
    else:
        _check_size(config, arrays, _of(tensors, "net."))
        net = _make(shape, options, mesh)
    net.load_state_dict(_of(tensors, "net."))
    beside: dict[str, Regression] = {}
    for name in ["plain"] * (config.plain_parameters is not None) + ["alone"] * config.has_alone:
        beside[name] = make_plain_net(
            "resnet" if is_own else options.net,
            shape,
            num_blocks=options.num_blocks,
            num_parameters=config.plain_parameters or 0,
            mesh=mesh,
        )
        beside[name].load_state_dict(_of(tensors, f"{name}."))
        beside[name].eval()
    grid = grid_from_plain(config.grid, arrays["grid.rows"], arrays["grid.columns"])
    if grid.hash != config.grid["hash"]:
        raise DataError(f"{path}: the hash of its grid is {grid.hash}, the config has {config.grid['hash']}")
    same: dict[str, Any] = {name: getattr(config, name) for name in _SAME}
    return Fitted(
        **same,
        options=options,
        ladder=Ladder.from_plain(config.ladder, arrays),
        net=net.eval(),
        plain=beside.get("plain"),
        alone=beside.get("alone"),
        shape=shape,
        input_channels=config.inputs,
        target_channels=config.targets,
        grid=grid,
        mesh=mesh,
        layout=OutputLayout.from_plain(config.layout, arrays),
        statistics=Statistics(**{name: arrays[f"statistics.{name}"] for name in Statistics.names()}),
        static=arrays["static"],
        input_mask=arrays["input_mask"],
        bounds={name: (start, stop) for name, (start, stop) in config.bounds.items()},
    )


def _check_size(config: _Config, arrays: dict[str, np.ndarray], state: dict[str, torch.Tensor]) -> None:
    """Refuses a config of a net that is larger than the weights beside it, before memory is taken for the net."""
    options, shape, num_values = config.options, config.net, sum(tensor.numel() for tensor in state.values())
    # One filter of each expert, without its neighbours.
    width = shape.in_channels if options.net == "layer" else options.filters
    least = int(options.filters * options.num_experts) * width
    is_net = options.net not in SIMPLE
    if is_net and (least > num_values or options.num_blocks > len(state)):
        raise RuntimeError(
            f"it describes {options.filters} filters of {options.num_experts:g} experts in {options.num_blocks} "
            f"blocks, but the weights are {num_values:,} numbers"
        )
    num_outputs = len(config.targets) * options.outputs_per_target
    num_inputs = num_channels(
        config.ladder.basis, len(config.inputs), len(config.targets), has_lead=config.lead_scale is not None,
        is_own=config.has_own_net,
    )  # fmt: skip
    expected = (num_inputs, num_outputs, arrays["input_mask"].shape[1:])
    found = (shape.in_channels, shape.out_channels, shape.grid)
    if found != expected or shape.num_targets != len(config.targets):
        raise RuntimeError(f"its net is {shape}, but inputs, targets and grid are {expected}")


def _make(shape: NetShape, options: RegressorOptions, mesh: Mesh | None) -> Regression:
    return make_net(
        options.net,
        shape,
        filters=options.filters,
        num_blocks=options.num_blocks,
        num_experts=options.num_experts,
        local_affine=options.local_affine,
        mesh=mesh,
    )


def _of(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def check_folder(path: Path) -> None:
    """Refuses a folder that cannot hold a new model, before anything is fitted."""
    if path.exists() and not path.is_dir():
        raise DataError(f"{path} is a file: choose a folder")
    if (path / CONFIG).exists():
        raise DataError(f"{path} holds a model already: choose another folder")
    folder = path
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise DataError(f"{path} cannot be written: {folder} is a file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DataError(f"{path} cannot be written: {folder} is read-only for this user")
