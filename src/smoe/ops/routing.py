"""The routing: which experts serve which pixel. One value with flat pixels for lines, grids, volumes and meshes."""

from __future__ import annotations

from typing import NamedTuple

import torch

from smoe.ops.registration import has_transforms, is_dense_only


class Routing(NamedTuple):
    """The decision of a gate in one forward pass.

    The first dimension has size 1 if all samples share the routing, and size B if each sample has its own. Pixels are
    flat: a grid of H x W has P = H * W. A routing that was drawn without computing the scores of all experts has empty
    scores, `(1, 0, P)`.

    Attributes:
        indices: Selected experts `(1 or B, E, P)`, int32.
        scores: Scores that were ranked `(1 or B, X, P)`, with noise and normalised, at least float32.
        clean: Scores before noise and normalisation, `(1 or B, X, P)`.
        noisy: Scores before normalisation, `(1 or B, X, P)`.
        noise_std: Standard deviation of the noise in `noisy`; 0 without noise.
        unranked: NaN at pixels where a score is not finite and 0 elsewhere, `(1, 1, P)`, where the scores are empty and
            such a score could not be refused; None otherwise.
    """

    indices: torch.Tensor
    scores: torch.Tensor
    clean: torch.Tensor
    noisy: torch.Tensor
    noise_std: float = 0.0
    unranked: torch.Tensor | None = None

    @property
    def has_scores(self) -> bool:
        """Whether the scores of all experts are at hand."""
        return self.scores.shape[1] > 0

    @property
    def weights(self) -> torch.Tensor:
        """Scores of the selected experts, `(1 or B, E, P)`; they carry the gradient of `scores`."""
        return self.scores.gather(1, self.indices.long())


class RoutingMap(NamedTuple):
    """The decision of a gate in the shape of its grid, for users and pictures.

    Attributes:
        indices: Selected experts, `(E, *grid)`, or `(B, E, *grid)` if the gate depends on its input; int64.
        weights: Their scores, of the same shape.
    """

    indices: torch.Tensor
    weights: torch.Tensor


def weigh(selected: torch.Tensor, weights: torch.Tensor, expert_channels: int) -> torch.Tensor:
    """Multiplies the outputs of each selected expert by its weight.

    Args:
        selected: Outputs of the selected experts, `(B, E * F, *grid)`.
        weights: Weights of the selected experts, `(1 or B, E, P)`.
        expert_channels: F.
    """
    per_channel = weights.to(selected.dtype).repeat_interleave(expert_channels, dim=1)
    return selected * per_channel.unflatten(2, selected.shape[2:])


def refuses_nonfinite(device: torch.device) -> bool:
    """Whether a selection on a device raises an error where a score is not finite.

    On an accelerator the host would have to wait for the device. Plain operations cannot raise in a compiled program,
    and what is exported may become plain operations. A transform of torch.func may have no single value to look at.
    """
    is_plain = torch.compiler.is_exporting() or (is_dense_only() and torch.compiler.is_compiling()) or has_transforms()
    return device.type == "cpu" and not is_plain


def nan_where_nonfinite(values: torch.Tensor) -> torch.Tensor:
    """NaN at pixels where a value is not finite and 0 elsewhere, `(1 or B, 1, P)` of values `(1 or B, X, P)`."""
    values = values.detach()
    # Infinity minus itself is NaN, too.
    return (values - values).sum(dim=1, keepdim=True)


def mark_unranked(output: torch.Tensor, routing: Routing) -> torch.Tensor:
    """Makes the outputs NaN at pixels where a score is not finite and could not be refused when it was ranked.

    Such a score ranks last, and is seen where the loss is read; layers count the error that comes back.

    Args:
        output: Output of a layer, `(B, E * F, *grid)`.
        routing: Its routing.
    """
    mark = routing.unranked
    if mark is None:
        if not routing.has_scores or refuses_nonfinite(routing.scores.device):
            return output
        mark = nan_where_nonfinite(routing.scores)
    return output + mark.to(output.dtype).unflatten(2, output.shape[2:])
