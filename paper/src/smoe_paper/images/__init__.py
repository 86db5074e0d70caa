"""Classification of small images: MNIST, Fashion-MNIST and CIFAR-10 (paper section 3.4 and appendix D)."""
