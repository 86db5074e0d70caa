from __future__ import annotations

from smoe.errors import suggest


def test_the_nearest_name_or_all_of_them() -> None:
    assert suggest("trian", ["train", "show"]) == "did you mean 'train'?"
    assert suggest("xyz", ["train", "show"]) == "there are train, show"
    assert suggest("tra", ["transformer"]) == "there are transformer"
    assert suggest("tra", ["transformer"], cutoff=0.3) == "did you mean 'transformer'?"
