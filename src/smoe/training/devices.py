"""Devices, precision and processes, which accelerate carries."""

from __future__ import annotations

import gc

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from smoe.training.plan import TrainingPlan


def make_accelerator(plan: TrainingPlan) -> Accelerator:
    """An accelerator as the plan asks for, whatever an earlier run of this process had asked for."""
    # accelerate keeps the first accelerator's precision for all later ones, and refuses another.
    AcceleratorState._reset_state()
    return Accelerator(cpu=plan.device == "cpu", mixed_precision=plan.precision)


def leave_processes() -> None:
    """Ends the group of processes a launcher began, once their work is done and nothing of it is held any more.

    A thread of the group may still hold a tensor of the last broadcast: if the interpreter ends before it does, the
    process aborts after all its work was done.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    gc.collect()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
