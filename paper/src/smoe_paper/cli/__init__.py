"""The commands of the experiments: train, evaluate, show, report, reproduce, recipes, data, bench."""
