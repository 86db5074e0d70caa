"""Images with class labels: MNIST, Fashion-MNIST and CIFAR-10 from their published files.

This file imports nothing: recipes use the sets of `catalogue`, which needs no numpy.
"""
