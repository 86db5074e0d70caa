"""The method on one page, in plain PyTorch: the paper's layer and the default layer of this library.

Every expert is computed everywhere, which is slow; the layers of the library compute the selected ones only and are
tested to be equal (tests/test_reference.py). B samples, C channels, X experts, E of them selected, H rows, W columns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class PaperMoE2d(nn.Module):
    """The layer of the paper (Dryden & Hoefler, 2022, section 2), which selects the E experts with the best scores.

    A choice is wrong for the gate if its error exceeds the `error_quantile` of its sample's errors by more than
    `tolerance`; by more than `damping_tolerance`, the error of its expert is multiplied by `damping` (section 2.3).
    """

    def __init__(
        self,
        in_channels: int,
        num_experts: int,
        num_selected: int,
        spatial_shape: tuple[int, int],
        *,
        error_quantile: float = 0.7,
        damping: float = 0.1,
        tolerance: float = 1e-5,
        damping_tolerance: float = 1e-3,
    ) -> None:
        super().__init__()
        self.num_selected = num_selected
        self.numbers = (error_quantile, damping, tolerance, damping_tolerance)
        self.weight = nn.Parameter(torch.empty(num_experts, in_channels, 3, 3))
        nn.init.kaiming_uniform_(self.weight, nonlinearity="relu")
        bound = (3 * num_experts / num_selected) ** 0.5
        self.scores = nn.Parameter(torch.empty(num_experts, *spatial_shape).uniform_(-bound, bound))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, H, W)` to `(B, E, H, W)`: channel s is each pixel's expert with the s-th best score."""
        outputs = F.conv2d(input, self.weight, padding=1)
        chosen = self.scores.topk(self.num_selected, dim=0).indices
        selected = outputs.gather(1, chosen.expand(len(input), -1, -1, -1))
        return _RoutingClassification.apply(selected, self.scores, chosen, *self.numbers)  # type: ignore[return-value]


class _RoutingClassification(torch.autograd.Function):
    """Returns its input; in backward, trains the gate (section 2.2) and damps the error of the experts (2.3)."""

    @staticmethod
    def forward(ctx, selected, scores, chosen, *numbers):
        ctx.save_for_backward(scores, chosen)
        ctx.numbers = numbers
        return selected.detach()

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,), (scores, chosen) = grad_outputs, ctx.saved_tensors
        error_quantile, damping, tolerance, damping_tolerance = ctx.numbers
        # The gradient of a mean-squared loss over N outputs is 2 / N (prediction - truth).
        size = error.abs() * error.numel() / 2
        threshold = size.flatten(1).quantile(error_quantile, dim=1).view(-1, 1, 1, 1)
        is_wrong = size > threshold + tolerance
        # Labels: 1 for a right choice, 0 for a wrong one; experts not selected share the blame of the wrong ones.
        num_others = len(scores) - len(chosen)
        others = (is_wrong.sum(dim=1, keepdim=True) / num_others).clamp(max=1.0)
        labels = others.expand(-1, len(scores), -1, -1).scatter(1, chosen.expand_as(is_wrong), (~is_wrong).to(error))
        with torch.enable_grad():
            logits = scores.detach().requires_grad_()
            loss = F.binary_cross_entropy_with_logits(logits.expand_as(labels), labels)
        (gate_gradient,) = torch.autograd.grad(loss, logits)
        damped = torch.where(size > threshold + damping_tolerance, damping * error, error)
        return damped, gate_gradient, *(None,) * 5


class FamilyMoE2d(nn.Module):
    """The default layer: each output channel has a family of candidates, one of which serves each pixel.

    The score of a candidate is the product of its key and the pixel's embedding, plus noise in training. The candidates
    of a family start equal: the layer is a convolution. Each output channel and pixel has a scale and an offset. Keys
    and embedding are buffers, which learn by steps of 0.1 in units of the scores: call `step_gate` after the optimiser's
    step. (The library's layer needs no call, and takes smaller steps where a schedule ends.) Their lengths are bounded:
    no score leads by so much that the others have no gradient. E is `out_channels`, at least 2, K `num_candidates`.
    """

    keys: torch.Tensor
    embedding: torch.Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_candidates: int,
        spatial_shape: tuple[int, int],
        rank: int = 8,
        scale: float = 10.0,
    ) -> None:
        super().__init__()
        self.score_scale = scale
        filters = nn.init.kaiming_uniform_(torch.empty(out_channels, in_channels, 3, 3), nonlinearity="relu")
        self.weight = nn.Parameter(filters[:, None].repeat(1, num_candidates, 1, 1, 1))
        self.bias = nn.Parameter(torch.zeros(out_channels, num_candidates))
        self.scale = nn.Parameter(torch.ones(out_channels, *spatial_shape))
        self.offset = nn.Parameter(torch.zeros(out_channels, *spatial_shape))
        keys = torch.randn(out_channels, num_candidates, rank) / rank**0.5
        self.register_buffer("keys", keys.requires_grad_())
        self.register_buffer("embedding", (torch.randn(rank, *spatial_shape) * 0.1 / scale).requires_grad_())
        self.own_optimizer = torch.optim.Adam([{"params": [self.keys]}, {"params": [self.embedding]}], lr=0.1 / scale)
        self.mean: torch.Tensor | None = None

    def step_gate(self) -> None:
        """One step of the gate, by the gradients of all backward passes since the last one."""
        for group in self.own_optimizer.param_groups:  # numbers rest where nothing is left of their largest gradient
            group["eps"] = max(group["eps"], 1e-3 * float(group["params"][0].grad.square().mean().sqrt()))
        self.own_optimizer.step()
        self.own_optimizer.zero_grad()
        with torch.no_grad():
            self.keys.mul_((1.0 / self.keys.norm(dim=2, keepdim=True)).clamp(max=1.0))
            self.embedding.mul_((0.6 / self.embedding.norm(dim=0)).clamp(max=1.0))

    def forward(self, input: torch.Tensor, noise: torch.Tensor | float = 0.0) -> torch.Tensor:
        """`(B, C, H, W)` to `(B, E, H, W)`; `noise` is added to the scores `(E, K, H, W)`, the same between steps."""
        scores = self.score_scale * torch.einsum("ekr,rhw->ekhw", self.keys, self.embedding)
        # What distinguishes candidates works on the input less its mean in the first training pass.
        self.mean = input.detach().mean(dim=(0, 2, 3)) if self.mean is None else self.mean
        deviations = self.weight - self.weight.mean(dim=1, keepdim=True)
        bias = self.bias - torch.einsum("ekcij,c->ek", deviations, self.mean)
        outputs = F.conv2d(input, self.weight.flatten(0, 1), bias.flatten(), padding=1).unflatten(1, scores.shape[:2])
        chosen = (scores + noise).argmax(dim=1, keepdim=True)
        selected = outputs.gather(2, chosen.expand(len(input), -1, -1, -1, -1))[:, :, 0]
        return self.offset + self.scale * _StraightThrough.apply(selected, scores, outputs.detach())  # type: ignore


class _StraightThrough(torch.autograd.Function):
    """Returns its input; in backward, the scores receive the gradient of a softmax mixture of all candidates."""

    @staticmethod
    def forward(ctx, selected, scores, outputs):
        ctx.save_for_backward(scores, outputs)
        return selected.detach()

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,), (scores, outputs) = grad_outputs, ctx.saved_tensors
        # To first order, candidate k in place of the selected one changes the loss by its product with the error.
        products = (error[:, :, None] * outputs).sum(dim=0)
        share = scores.softmax(dim=1)
        return error, share * (products - (share * products).sum(dim=1, keepdim=True)), None
