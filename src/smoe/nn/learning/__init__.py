"""Learners: what the rules of `smoe.rules` do in a layer."""

from smoe.nn.learning.learner import Learner, Setting, Step, make_learner, output_under_transforms, refuse_vmap
from smoe.nn.memory import Memory

__all__ = ["Learner", "Memory", "Setting", "Step", "make_learner", "output_under_transforms", "refuse_vmap"]
