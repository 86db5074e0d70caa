"""Fields on a grid: files, grids, times and samples, for variables and grids that the files name."""

# ruff: noqa: F401
from smoe._files import check_grib_file
from smoe.gridded._axes import are_same_units
from smoe.gridded._grids import HorizontalGrid, NodeGrid, Orientation
from smoe.gridded._open import (
    Data,
    OpenOptions,
    damage_as_data_error,
    import_cfgrib,
    import_xarray,
    open_fields,
    open_netcdf,
)
from smoe.gridded._output import (
    WRITING,
    check_output,
    with_provenance,
    write_cf,
)
from smoe.gridded._read_mesh import read_mesh
from smoe.gridded._source import Channel, FieldSource
from smoe.gridded._tables import (
    FieldMoments,
    FieldTable,
    Progress,
    block_rows,
    check_gaps,
    collect_fields,
    describe_invalid,
    describe_position,
    find_outlier,
    free_memory,
    has_gap,
)
from smoe.gridded._times import (
    Lead,
    MonthTimes,
    Pairs,
    Period,
    TimeLabels,
    check_apart,
    describe_lost,
    find_month_times,
    pair_by_time,
    parse_lead,
    parse_period,
    remaining_samples,
    samples_in,
    split_off_last,
)
