"""Faults on purpose: killed processes, full disks, damaged and hostile files, and what comes of them.

`make faults` runs all kinds and writes results/faults/faults.md; `python -m faults --help` explains the options. A
fraction of the cases is part of the tests (`tests/faults/test_faults.py`). The package is in `tests`, because it uses
the writers of small files that the tests share, and is not installed.

One file holds one kind of fault, or several that share their cases; `registry.py` lists them.
"""
