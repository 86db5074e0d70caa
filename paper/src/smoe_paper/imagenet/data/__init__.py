"""Finds, reads and augments images in class folders."""
