"""Tables of results: which runs they need, training those that are missing, and writing them beside the paper's."""
