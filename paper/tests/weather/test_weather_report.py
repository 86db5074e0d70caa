from __future__ import annotations

import io

from rich.console import Console

from smoe_paper.weather.scores import print_published, print_scores


def narrow_console() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=80, highlight=False), file


def test_no_name_is_cut_off_in_80_columns() -> None:
    scores = {f"{kind}_{channel}": 14003.0 for kind in ("rmse", "mean_rmse", "acc") for channel in ("z_500", "t2m")}
    baselines: dict[str, dict[str, float]] = dict.fromkeys(("persistence", "climatology", "weekly climatology"), scores)
    console, file = narrow_console()
    print_scores("title", "weather/smoe", scores, baselines, console)
    header = file.getvalue().splitlines()[3]
    assert header.split() == ["score", "weather/smoe", "persistence", "climatology", "climatology"]
    assert "mean_rmse_z_500, m2 s-2" in file.getvalue()
    console, file = narrow_console()
    print_scores("title", "weather/smoe-prior-rasp", scores, baselines, console)
    assert "…" not in file.getvalue()


def test_channels_and_leads_that_nobody_published_are_named() -> None:
    console, file = narrow_console()
    print_published("file.nc", 72, {"rmse_tp": 0.001, "mae_tp": 0.001}, {}, console=console)
    assert file.getvalue() == (
        "nothing was published for tp at 72 h; the tables have z_500, t_850, t2m at 72 h and 120 h\n"
    )
