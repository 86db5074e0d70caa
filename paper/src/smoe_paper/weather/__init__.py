"""The WeatherBench experiment (paper section 3.2)."""
