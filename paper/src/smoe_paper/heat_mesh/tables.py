"""The table of heat diffusion on every geometry. Imports no torch."""

from __future__ import annotations

from dataclasses import replace

from smoe_paper.experiments.tables import ResultTable, Row, Scale, ShownMetric, TableSet
from smoe_paper.heat_mesh.recipes import DomainName, MeshRecipe, plain, sage, smoe, straight_through

_DOMAINS: dict[DomainName, str] = {
    "line": "line, 4,096",
    "volume": "volume, 32 x 32 x 32",
    "healpix": "HEALPix, nside 32",
    "icosphere": "icosphere, 2,562",
    "fsaverage5": "fsaverage5, 10,242",
}

# A step takes up to three times that of probing: the smaller domains show what there is to see.
_STRAIGHT_THROUGH: tuple[DomainName, ...] = ("line", "icosphere")


def _rows() -> tuple[Row, ...]:
    rows: list[Row] = []
    for domain, label in _DOMAINS.items():
        rows.append(Row((label, "one expert everywhere"), plain(domain)))
        if domain == "fsaverage5":
            rows.append(Row((label, "SAGEConv, 1-16-1"), sage(domain)))
            rows.append(Row((label, "SAGEConv, 1-16-1, 8 learned features of each node"), sage(domain, 8)))
        if domain in _STRAIGHT_THROUGH:
            rows.append(
                Row((label, "SMoE, factorised gate, straight-through over one family"), straight_through(domain))
            )
        rows.append(Row((label, "SMoE, as by default: tensor gate, probing"), smoe(domain)))
    return tuple(rows)


def _same(recipe: MeshRecipe) -> MeshRecipe:
    return recipe


def _small(recipe: MeshRecipe) -> MeshRecipe:
    data = replace(recipe.data, num_train_runs=4, num_validation_runs=1, num_test_runs=1, num_steps=8)
    return replace(recipe, data=data, training=replace(recipe.training, max_epochs=2))


MESH_TABLES = TableSet(
    name="heat-mesh",
    metrics=(ShownMetric("within_1_percent", is_percentage=True),),
    metric_text=(
        "Percentage of test nodes within 1 % of the truth: mean ± standard deviation over the seeds; 100.0 means every "
        "node of every seed."
    ),
    tables=(
        ResultTable(
            "heat-mesh/main",
            "Heat diffusion on every geometry",
            ("domain", "model"),
            _rows(),
            text=(
                "Three regions that exchange 1, 10 and 100 % of a node's heat with its neighbours in each step, grown "
                "by preferential attachment over the edges."
            ),
        ),
    ),
    scales=(
        Scale("paper", "50 training runs of 40 steps", _same, is_comparable=False),
        Scale("small", "4 training runs of 8 steps, two epochs", _small, is_comparable=False),
    ),
    data_field="cache_dir",
)
