from __future__ import annotations

from typing import Any

import pytest

import smoe
from smoe._json import RecipeError
from smoe.errors import DataError, MissingPackageError, OptionError, SmoeError, suggest


def test_the_nearest_name_or_all_of_them() -> None:
    assert suggest("trian", ["train", "show"]) == "did you mean 'train'?"
    assert suggest("xyz", ["train", "show"]) == "there are train, show"
    assert suggest("tra", ["transformer"]) == "there are transformer"
    assert suggest("tra", ["transformer"], cutoff=0.3) == "did you mean 'transformer'?"


def test_one_class_catches_all_of_them() -> None:
    assert all(issubclass(kind, SmoeError) for kind in (DataError, MissingPackageError, OptionError, RecipeError))
    cases: list[dict[str, Any]] = [{"quantiles": (2.0,)}, {"no_such_option": 1}, {"net": "nett"}, {"lead": "soon"}]
    for options in cases:
        with pytest.raises(SmoeError):
            smoe.GridRegressor(**options)
    with pytest.raises(ValueError, match="filters must be a whole number"):
        smoe.GridRegressor(filters=0)
    with pytest.raises(TypeError, match="has no option 'fliters'; did you mean 'filters'"):
        smoe.GridRegressor(fliters=1)
