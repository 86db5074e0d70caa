"""What is to be said of the tables of ensembles and of their rows. Imports nothing."""

from __future__ import annotations

from collections import defaultdict

# By a table's name, or by its name and a row's label.
NOTES: defaultdict[str | tuple[str, str], str] = defaultdict(str, {})
