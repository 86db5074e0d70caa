"""What the weather and ensemble experiments share: variables of the atmosphere, their units, bounds and axes."""
