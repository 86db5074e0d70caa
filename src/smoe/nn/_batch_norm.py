"""Batch normalisation over all processes."""

from __future__ import annotations

import torch
from torch import distributed, nn


class SharedBatchNorm2d(nn.BatchNorm2d):
    """`torch.nn.BatchNorm2d` whose batch is that of all processes, so that training does not depend on their number.

    In one process, and in evaluation, it is `BatchNorm2d` itself. `torch.nn.SyncBatchNorm` does the same on GPUs but
    refuses a CPU.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        is_shared = self.training and distributed.is_available() and distributed.is_initialized()
        if not is_shared or distributed.get_world_size() == 1:
            return super().forward(input)
        from torch.distributed.nn.functional import all_reduce

        # Statistics of half precision are taken in float32, as torch's own are.
        values = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        size = values.new_full((1,), values.numel() // values.shape[1])
        sums = all_reduce(torch.cat([values.sum(dim=(0, 2, 3)), size]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = values - mean[:, None, None]
        # From the centred values, because a difference of two large numbers would lose digits.
        variance = all_reduce(centred.square().sum(dim=(0, 2, 3))) / count
        self._note(mean.detach(), variance.detach() * (count / (count - 1)))
        scale = torch.rsqrt(variance + self.eps) * self.weight
        return (centred * scale[:, None, None] + self.bias[:, None, None]).to(input.dtype)

    def _note(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        with torch.no_grad():
            self.num_batches_tracked += 1
            for running, value in ((self.running_mean, mean), (self.running_var, variance)):
                if self.momentum is None:
                    running.lerp_(value.to(running.dtype), self.num_batches_tracked.to(running.dtype).reciprocal())
                else:
                    running.lerp_(value.to(running.dtype), self.momentum)
