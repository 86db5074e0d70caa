"""Recipes, the paper's numbers, and what runs them: the only part that sees everything."""
