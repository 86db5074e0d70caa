"""Names of the packages that can record a training. Imports nothing heavy, so that options can hold them."""

from __future__ import annotations

from typing import Literal, get_args

Tracker = Literal["tensorboard", "mlflow", "wandb"]
TRACKERS: tuple[Tracker, ...] = get_args(Tracker)
