"""Graphs on which heat diffuses, their region maps, and the simulation."""
