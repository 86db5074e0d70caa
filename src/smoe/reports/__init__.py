"""The report of one run or of several: one HTML file that needs no network."""
