"""Post-processing of ensemble forecasts (paper section 3.3)."""
