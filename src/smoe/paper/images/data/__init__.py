"""Images with class labels: MNIST, Fashion-MNIST and CIFAR-10 from their published files.

Nothing is imported here: recipes name the sets of `catalogue`, which needs no numpy.
"""
