"""What is to be said of the weather tables and of their rows. Imports nothing."""

from __future__ import annotations

from collections import defaultdict

# By a table's name, or by its name and a row's label.
NOTES: defaultdict[str | tuple[str, str], str] = defaultdict(
    str,
    {
        "weather/3-days": (
            "The small scale is a trial: two seeds, about 1,100 steps, and seconds of a busy machine. On the "
            "simulated atmosphere, whose sea is the same in every year, the weekly climatology is hard to beat. What "
            "depends on the place helps there (LRLCN, ViT, also the wide net); the SMoE with a random gate that stays "
            "is level with the R&T net (450 to 454 ± 6); and the paper's training of the gate does harm: with the RC "
            "loss and damping 0.1 every SMoE is behind the fixed random gate, in both seeds, most of all the layer "
            "before the output. The land-sea prior changes nothing. The paper reports the opposite on ERA5, with "
            "full-size nets and long training. weather/routing looks for the reason, and finds a rule, probing, with "
            "which the same net is ahead of the R&T net."
        ),
        ("weather/3-days", "SMoE after the last layer"): (
            "its routing counts the largest 30 % of the errors as wrong, and damping takes nine tenths of these from "
            "the experts and from all layers before: what the loss is made of is hardly learned from."
        ),
        "weather/routing": (
            "Probing (docs/probing.md) is the best way found: with two standard errors its net is better than the "
            "convolutional one it was made of (3-days.md) in both seeds, better than a gate that never learns and "
            "better than RC. With it 17 and 25 % of the choices change in eight epochs, and the order only where a "
            "choice does. A smooth start does not help it. So `weather/smoe-probe` is what we recommend for deep "
            "nets; the paper's rows keep the paper's text. Of the RC loss, damping costs most: the heat setting (0.3,"
            " 0), which keeps 70 % of all errors from the experts of every layer, is worse than persistence; 0.7 with"
            " 0.1 loses against no damping, and no damping against a gate that stays as it starts. Who trains deep "
            "nets by RC should leave the error whole, `damping=None`. What the gate learns is seen in "
            "3-days-changes.png: with one gate for all layers 0.04 % of the choices change in eight epochs, but half "
            "of the places in the order change in each epoch, and more in each than in the one before. The RC loss "
            "pulls the scores of all selected experts to the same value (0.7, 0.1: at a pixel their deviation falls "
            "from 0.72 to 0.30, the median gap of neighbours from 0.105 to 0.007), and where these meet, their order "
            "is noise; in score order the next layer's filters then find another expert in a channel. Rows without a "
            "number have not been run."
        ),
    },
)
