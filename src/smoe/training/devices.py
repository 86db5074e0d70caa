"""Devices, precision and processes, which accelerate carries."""

from __future__ import annotations

from accelerate import Accelerator
from accelerate.state import AcceleratorState

from smoe.training.plan import TrainingPlan


def make_accelerator(plan: TrainingPlan) -> Accelerator:
    """An accelerator as the plan asks for, whatever an earlier run of this process had asked for."""
    # accelerate keeps the first accelerator's precision for all later ones, and refuses another.
    AcceleratorState._reset_state()
    return Accelerator(cpu=plan.device == "cpu", mixed_precision=plan.precision)
