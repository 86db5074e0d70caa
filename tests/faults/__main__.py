"""`python -m faults`: tries the faults and writes the table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from faults import disks, stops
from faults.campaign import Campaign, run_side_by_side, write_results
from faults.jobs import import_modules
from faults.outcome import Kind
from faults.registry import find_kinds


def main() -> int:
    """Runs the kinds that are asked for; returns 1 if one of them has a bad outcome."""
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="KIND", help="kinds to run; all if not given")
    parser.add_argument("--share", type=float, default=1.0, help="share of the cases of each kind")
    parser.add_argument("--most", type=int, help="at most so many cases of each kind")
    parser.add_argument("--case", type=int, help="number of one case to run again, with --only")
    parser.add_argument("--jobs", type=int, default=1, help="kinds to run at a time")
    parser.add_argument("--state", type=Path, default=Path("build/faults"), help="where a run that is stopped goes on")
    parser.add_argument("--output", type=Path, default=Path("results/faults"), help="folder of the table")
    parser.add_argument("--table", action="store_true", help="try nothing, and write the table of what was tried")
    parser.add_argument("--note", default="", help="a sentence to print below the table")
    parser.add_argument("--restart", action="store_true", help="begin anew")
    options = parser.parse_args()
    kinds = find_kinds(options.only)
    if options.case is not None:
        for kind in kinds:
            sys.stdout.write(f"{kind.name} {options.case}: {Campaign(kind).try_one(options.case)}\n")
        return 0
    if not options.table and any(kind in (*disks.KINDS, *stops.KINDS) for kind in kinds):
        import_modules()
    campaigns = [_campaign(kind, options) for kind in kinds]
    failed = [] if options.table else run_side_by_side(campaigns, options.jobs, print)
    write_results(options.output, campaigns, options.note)
    return int(bool(failed) or any(campaign.num_bad for campaign in campaigns))


def _campaign(kind: Kind, options: argparse.Namespace) -> Campaign:
    share = options.share if options.most is None else min(options.share, options.most / kind.number)
    return Campaign(kind, share, options.state, restart=options.restart, any_commit=options.table)


if __name__ == "__main__":
    sys.exit(main())
