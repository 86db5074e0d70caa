"""The heat-diffusion experiment (paper section 3.1)."""
