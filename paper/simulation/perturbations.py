"""Perturbed initial states: scaled differences between states of the truth on other dates of the season.

Such a difference has the patterns of weather and nearly its balance of wind and mass, so that it does not disperse as
gravity waves within hours, as white noise does (Magnusson, Nycander, Källén 2009, "random field perturbations").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

State = dict[str, np.ndarray]


@dataclass(frozen=True)
class Perturbations:
    """How far the members start from the truth and from each other, in differences of two random dates.

    Attributes:
        analysis: Size of the error of the state that all members of a date start from.
        members: Size of each member's own perturbation. It is smaller than the error, so that the ensemble
            underestimates its uncertainty, as real ones do.
        num_members: Number of members of each date.
        seed: Seed of the choice of dates, together with the start.
    """

    analysis: float = 0.25
    members: float = 0.18
    num_members: int = 10
    seed: int = 0

    def draw(self, start: np.datetime64, bank: Sequence[State]) -> State:
        """Perturbations of every member's state, `(M, ...)` for each name; the same each time for a start.

        Args:
            start: Start date of the forecast.
            bank: States of the truth before the start.
        """
        if len(bank) < 2:
            raise ValueError(
                f"perturbations are differences of two states, but only {len(bank)} is kept before {start}"
            )
        day = int(start.astype("datetime64[D]").astype(np.int64))
        rng = np.random.default_rng([self.seed, day])
        error = self._difference(rng, bank, self.analysis)
        own = [self._difference(rng, bank, self.members) for _ in range(self.num_members)]
        return {name: np.stack([error[name] + each[name] for each in own]) for name in error}

    @staticmethod
    def _difference(rng: np.random.Generator, bank: Sequence[State], size: float) -> State:
        one, other = rng.choice(len(bank), 2, replace=False)
        return {name: (size * (bank[one][name] - bank[other][name])).astype(np.float32) for name in bank[one]}
