"""Code shared by the weather and ensemble experiments: variables of the atmosphere, their units, bounds and axes."""
