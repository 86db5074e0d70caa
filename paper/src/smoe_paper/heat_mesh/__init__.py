"""Heat diffusion on every geometry: a line, a volume, HEALPix and icosahedral spheres, a cortical surface."""
