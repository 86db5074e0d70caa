"""The experiments of the paper, one folder each: data, models, recipes, tables and pictures."""
