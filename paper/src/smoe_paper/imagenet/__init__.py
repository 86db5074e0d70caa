"""Classification of ImageNet (paper section 3.4)."""
