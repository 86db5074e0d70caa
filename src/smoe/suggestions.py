"""What to say of a name that does not exist. Imports nothing heavy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest(name: str, known: Iterable[str], *, cutoff: float = 0.6, otherwise: str = "there are") -> str:
    """`did you mean 'train'?`, or, if nothing is near, all the names there are.

    Args:
        name: what was typed.
        known: the names there are.
        cutoff: how near a name must be to be meant, between 0 and 1.
        otherwise: what comes before all the names.
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else f"{otherwise} {', '.join(names)}"
