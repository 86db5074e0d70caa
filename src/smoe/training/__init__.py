"""One training loop for every task, with its checkpoints and run directory."""
