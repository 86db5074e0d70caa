"""CondConv: a convolution whose kernel is mixed from several experts for each sample (Yang et al., 2019)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from smoe.nn.grid_checks import check_input, check_kernel_size, check_padding_mode, check_positive
from smoe.ops.padding import wrap_padding
from smoe.options import PaddingMode


class CondConv2d(nn.Module):
    """`(B, C, H, W)` to `(B, out_channels, ceil(H / stride), ceil(W / stride))`, without bias.

    The kernel of a sample is the sum of all experts' kernels, each times the sigmoid of its score; the scores are a
    linear function, with bias, of the sample's mean over the grid. So a kernel depends on the values of the sample,
    never on the place where it is applied.

    Args:
        in_channels: C.
        out_channels: Number of filters of each expert.
        kernel_size: Size of the kernel, odd: one number, or rows and columns.
        num_experts: Number of kernels to mix.
        stride: Stride of both axes.
        padding_mode: `zeros`, `circular` or `longitude`.
        device: Device of the weights.
        dtype: Data type of the weights.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int] = 3,
        *,
        num_experts: int = 3,
        stride: int = 1,
        padding_mode: PaddingMode = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, out_channels=out_channels, num_experts=num_experts, stride=stride)
        self.kernel_size = check_kernel_size(kernel_size)
        self.stride = stride
        self.padding_mode: PaddingMode = check_padding_mode(padding_mode)
        self.num_experts = num_experts
        # Four dimensions, all filters of expert 0 first: `.to(memory_format=torch.channels_last)` refuses five.
        shape = (num_experts * out_channels, in_channels, *self.kernel_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        # Each expert starts as a convolution of its own: the fan-in is that of one expert.
        bound = math.sqrt(6.0 / (in_channels * self.kernel_size[0] * self.kernel_size[1]))
        nn.init.uniform_(self.weight, -bound, bound)
        self.router = nn.Linear(in_channels, num_experts, device=device, dtype=dtype)

    def mixing_weights(self, input: torch.Tensor) -> torch.Tensor:
        """Returns the weights of the experts in each sample's kernel, `(B, num_experts)`, each in (0, 1)."""
        return torch.sigmoid(self.router(input.mean(dim=(2, 3))))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Convolves each sample with its own kernel."""
        in_channels, out_channels = self.weight.shape[1], self.weight.shape[0] // self.num_experts
        check_input(input, in_channels)
        B = input.shape[0]
        if B == 0:
            raise ValueError(f"each sample has its own kernel: the batch must not be empty, got {tuple(input.shape)}")
        kernels = self.mixing_weights(input) @ self.weight.reshape(self.num_experts, -1)
        padded, zeros = wrap_padding(input, self.kernel_size, self.padding_mode)
        # Mixed kernels in one convolution of a group per sample, because its cost does not grow with the experts. Every
        # expert's convolution and then a mix took 3 to 28 times as long (3 experts, forward and backward, one thread),
        # 0.6 times only where 12 channels become 1.
        output = F.conv2d(
            padded.reshape(1, B * in_channels, *padded.shape[2:]),
            kernels.reshape(B * out_channels, in_channels, *self.kernel_size),
            stride=self.stride,
            padding=zeros,
            groups=B,
        )
        return output.reshape(B, out_channels, *output.shape[2:])

    def extra_repr(self) -> str:
        """Returns the arguments that `repr` shows."""
        in_channels, out_channels = self.weight.shape[1], self.weight.shape[0] // self.num_experts
        return (
            f"{in_channels}, {out_channels}, kernel_size={self.kernel_size}, num_experts={self.num_experts}, "
            f"stride={self.stride}, padding_mode={self.padding_mode!r}"
        )
