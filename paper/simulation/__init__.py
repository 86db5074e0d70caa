"""A simulated atmosphere in WeatherBench's file layout; see README.md."""
