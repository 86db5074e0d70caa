"""Augmentations of the published ImageNet recipe, on Pillow images and torch batches, drawn by numpy generators."""
