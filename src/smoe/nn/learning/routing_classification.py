"""The gate learns by the routing classification loss (paper section 2.2)."""

from __future__ import annotations

import torch

from smoe.nn.learning.learner import Learner, Step
from smoe.ops.train_routing import have_one_threshold, train_routing
from smoe.rules import RoutingClassification


class RoutingClassificationLearner(Learner):
    """Gives the scores the gradient of the routing classification loss."""

    rule: RoutingClassification

    def output(self, step: Step) -> torch.Tensor:
        """The selected experts' outputs; in backward, the gate learns and the experts receive the damped error."""
        step.gate.refuse_memory(self.rule)
        output = step.weighed(step.select(step.source, step.routing.indices))
        damping = step.damping
        if damping is not None and not have_one_threshold(self.rule, damping):
            # Two thresholds take two passes; the gate is to see the whole error, so the damping comes last in backward.
            output = train_routing(
                output, step.routing, expert_channels=step.expert_channels, signal=step.signal, damping=damping
            )
            damping = None
        return train_routing(
            *(output, step.routing),
            expert_channels=step.expert_channels,
            signal=step.signal,
            rule=self.rule,
            damping=damping,
        )
