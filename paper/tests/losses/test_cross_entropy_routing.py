"""What routing classification makes of a cross-entropy: its error signal, and which choices count as wrong."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from smoe.ops._classification import choice_errors, wrong_choices
from smoe_paper.losses import CrossEntropy

B, C, H, W, N = 6, 5, 4, 3, 7


def error_signal() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outputs of a layer before ReLU, mean and linear map, the gradient at them, and that of each sample's own loss.

    All are `(B, C, P)`.
    """
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(B, C, H, W, generator=generator).requires_grad_()
    weight = torch.randn(N, C, generator=generator)
    labels = torch.randint(N, (B,), generator=generator)
    logits = F.relu(output).mean(dim=(2, 3)) @ weight.T
    (error,) = torch.autograd.grad(CrossEntropy()(logits, labels), output, retain_graph=True)
    (of_samples,) = torch.autograd.grad(F.cross_entropy(logits, labels, reduction="sum"), output)
    return output.detach().flatten(2), error.flatten(2), of_samples.flatten(2)


def test_the_size_does_not_depend_on_the_batch():
    _, error, of_samples = error_signal()
    torch.testing.assert_close(choice_errors(error, 1), of_samples.abs() * (C * H * W / 2))


def test_in_the_last_layer_it_knows_channels_but_no_places():
    output, error, _ = error_signal()
    errors = choice_errors(error, 1)
    for sample, channel in ((0, 0), (3, 2)):
        values = errors[sample, channel][output[sample, channel] > 0]
        torch.testing.assert_close(values, values[:1].expand_as(values))


def test_what_a_relu_cuts_is_never_wrong():
    output, error, _ = error_signal()
    # Half of the outputs are active, more than the 30 % that the quantile leaves: all wrong ones are among them.
    (is_wrong,) = wrong_choices(choice_errors(error, 1), 0.7, (1e-5,))
    assert is_wrong.any()
    assert not is_wrong[output <= 0].any()
