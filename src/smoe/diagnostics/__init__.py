"""Diagnostics of a routing; no pictures."""
