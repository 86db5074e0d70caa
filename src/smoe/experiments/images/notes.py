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
            "A beginning, with one to three seeds: hundreds of steps, where the paper trains for many epochs. So the "
            "accuracies say who learns fast, not where training ends; the paper's models all lie between 98.9 and "
            "99.5, and these differences can only be seen at its scale. After so few steps one seed differs from "
            "another by points. The SMoE is far ahead of the convolution that it replaces (89.7 to 74.0 with 64 "
            "filters, one seed), at about its cost; with small nets it is level with LRLCN and the wide convolution, "
            "within the spread, and the LCN is ahead of all. So it is not the best here, as the paper has it: its "
            "experts follow the gate it starts with, which the RC loss of a classifier does not change to any use "
            "(images/routing), while the LCN has filters of its own at each pixel."
        ),
        ("images/mnist", "SMoE, white noise, score order"): _PAPERS_SMOE,
        (
            "images/mnist",
            "LCN",
        ): "without a bias for each pixel, which Elsayed et al. have and the paper does not name.",
        "images/routing": (
            "One seed. In score order the RC loss costs 20 points against the same gate that stays as it starts: "
            "it hardly changes the choices, but their order, and so which expert is in which channel. A smooth "
            "start and the order of the experts' numbers are worth more than any training of the gate. All "
            "settings, with nets of 16 filters, are in benchmarks/results/image_routing.md."
        ),
        "images/fashion-mnist": "The paper does not have Fashion-MNIST; settings are those of MNIST.",
        "images/cifar10": (
            "No results here: CIFAR-10 is brought by the user (docs/images.md), and the recipes are tested on "
            "small files of its format."
        ),
    },
)
