"""Augmentations of the published ImageNet recipe, on Pillow's images and torch's batches, drawn by numpy generators."""
