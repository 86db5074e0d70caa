"""The routed convolution for NVIDIA GPUs, off unless SMOE_BACKEND=triton is set. See docs/gpu.md."""
