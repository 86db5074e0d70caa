"""Fields on a grid: files, grids, stores and samples, for variables and grids that the files name."""
