from __future__ import annotations

import torch

from smoe_paper.models import Emos


def test_by_hand() -> None:
    # Members 240, 250 and 260 of the range 240 to 260: 0, 1/2 and 1. Their mean square from 1/2 is 1/6.
    net = Emos(3, (240.0, 260.0))
    for parameter, value in zip(net.parameters(), ([[1.0, 2.0, 3.0]], [0.5], [[2.0]], [-1.0]), strict=True):
        parameter.data = torch.tensor(value)
    output = net(torch.tensor([240.0, 250.0, 260.0])[None, :, None, None].expand(2, 3, 4, 5))
    assert output.shape == (2, 2, 4, 5)
    # 1 * 0 + 2 / 2 + 3 * 1 + 0.5 = 4.5 and 2 sqrt(1/6) - 1
    torch.testing.assert_close(output[0, 0], torch.full((4, 5), 4.5))
    torch.testing.assert_close(output[1, 1], torch.full((4, 5), 2 * (1 / 6) ** 0.5 - 1))


def test_members_without_spread_have_no_gradient_that_is_not_a_number() -> None:
    net = Emos(3)
    net(torch.ones(1, 3, 2, 2)).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in net.parameters())
