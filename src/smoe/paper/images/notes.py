"""What is to be said of the tables of small images and of their rows. Imports nothing."""

from __future__ import annotations

from collections import defaultdict

_PAPERS_SMOE = (
    "the paper's text: white noise as the start, experts ordered by score, RC loss with quantile 0.7 and damping 0.1. "
    "It does not leave chance in so few steps: behind a ReLU the choices that count as wrong are the active ones, and "
    "damping takes nine tenths of their error away in every layer (docs/images.md, section 4)."
)

# By a table's name, or by its name and a row's label.
NOTES: defaultdict[str | tuple[str, str], str] = defaultdict(
    str,
    {
        "images/mnist": (
            "Nets of 16 filters that see as many images as the training set has, where the paper trains nets of "
            "64 filters for many epochs: the paper's models all lie between 98.9 and 99.5, and these differences "
            "can only be seen at its scale. The SMoE is ten points ahead of the convolution that it replaces and "
            "ahead of CoordConv and the wide convolution, a point behind LRLCN and two behind LCN. So it is not "
            "the best here, as the paper has it: its experts serve the places that the gate started with, which "
            "the RC loss of a classifier does not change to any use (images/routing), while the LCN has filters "
            "of its own at each pixel, 1.8 million weights. The row at scale trial, one seed: 64 filters, 300 "
            "batches. The seconds of some runs include a pause."
        ),
        ("images/mnist", "SMoE, white noise, score order"): _PAPERS_SMOE,
        (
            "images/mnist",
            "LCN",
        ): "without a bias for each pixel, which Elsayed et al. have and the paper does not name.",
        "images/routing": (
            "In score order the RC loss costs 20 points against the same gate that stays as it starts (64 "
            "filters, one seed): it hardly changes the choices, but their order, and so which expert is in which "
            "channel. Damping keeps the net near chance. A smooth start and the order of the experts' numbers are "
            "worth more than any training of the gate; probing, which needs score order, is behind them. All "
            "settings, with nets of 16 filters after 300 batches, are in benchmarks/results/image_routing.md."
        ),
        "images/fashion-mnist": (
            "The paper does not have Fashion-MNIST; settings are those of MNIST. The SMoE is six points ahead of "
            "the convolution and of CoordConv, level with LRLCN, and behind LCN."
        ),
        "images/cifar10": (
            "No results here: CIFAR-10 is brought by the user (docs/images.md), and the recipes are tested on "
            "small files of its format."
        ),
    },
)
