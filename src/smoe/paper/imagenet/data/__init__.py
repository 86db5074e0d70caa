"""Images of class folders: finding, reading and augmenting them."""
