from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F

from smoe_paper.imagenet.augment import cutmix, mix, mixup

IMAGES = torch.randn(4, 3, 8, 10, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([2, 0, 1, 1])
SHARES = F.one_hot(LABELS, 3).float()


class Beta(np.random.Generator):
    """Draws a given share, and its own integers."""

    def __init__(self, share: float, integers: list[int]) -> None:
        super().__init__(np.random.PCG64(0))
        self.share, self.places = share, integers

    def beta(self, a: float, b: float, size: None = None) -> float:  # type: ignore[override]
        assert a == b
        return self.share

    def integers(self, low: int, *_: object, **__: object) -> int:  # type: ignore[override]
        return self.places.pop(0)


def test_mixup() -> None:
    images, shares = mixup(Beta(0.7, []), IMAGES, SHARES, 0.2)
    for number in range(4):
        torch.testing.assert_close(images[number], 0.7 * IMAGES[number] + 0.3 * IMAGES[number - 1])
    # Classes 2, 0, 1, 1 with those before them, 1, 2, 0, 1.
    expected = torch.tensor([[0, 0.3, 0.7], [0.7, 0, 0.3], [0.3, 0.7, 0], [0, 1.0, 0]])
    torch.testing.assert_close(shares, expected)


def test_cutmix() -> None:
    # Half of the root of 0.36 is 0.3: 3 columns and int(2.4) = 2 rows to each side of column 8 and row 1.
    images, shares = cutmix(Beta(0.64, [8, 1]), IMAGES, SHARES, 1.0)
    inside = torch.zeros(8, 10, dtype=torch.bool)
    inside[0:3, 5:10] = True
    for number in range(4):
        assert torch.equal(images[number], torch.where(inside, IMAGES[number - 1], IMAGES[number]))
    # 15 of 80 pixels are another image's.
    torch.testing.assert_close(shares[0], torch.tensor([0, 15 / 80, 65 / 80]))
    assert torch.equal(IMAGES, torch.randn(4, 3, 8, 10, generator=torch.Generator().manual_seed(0)))


def test_a_batch_has_one_of_both() -> None:
    rng = np.random.default_rng(0)
    kinds = []
    for _ in range(200):
        images, shares = mix(rng, IMAGES, LABELS, 3, (0.2, 1.0))
        torch.testing.assert_close(shares.sum(dim=1), torch.ones(4))
        # A cut image holds pixels of its own or of its partner only.
        kinds.append(bool(((images == IMAGES) | (images == IMAGES.roll(1, 0))).all()))
    assert abs(sum(kinds) / 200 - 0.5) < 4 * math.sqrt(0.25 / 200)
    assert mix(rng, IMAGES, LABELS, 3, (0.0, 0.0)) == (IMAGES, LABELS)
    for alphas, is_cut in (((0.2, 0.0), False), ((0.0, 1.0), True)):
        images, _ = mix(np.random.default_rng(3), IMAGES, LABELS, 3, alphas)
        assert bool(((images == IMAGES) | (images == IMAGES.roll(1, 0))).all()) is is_cut
