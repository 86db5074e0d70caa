"""Triton kernels for NVIDIA GPUs: one file per operator, imported when an operator runs on a GPU for the first time.

Nothing outside this package imports it before that, so `import smoe` imports no Triton. `availability` and `tiles` need
no Triton themselves. See docs/gpu.md.
"""
