"""Layers and gates that the experiments compare with."""
