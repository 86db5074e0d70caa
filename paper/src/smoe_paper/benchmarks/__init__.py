"""Measurements of speed and memory: ratios to PyTorch's own layers, side by side in one run."""
