"""Files of an ensemble store, all plain little-endian float32 without a header, and its metadata.

`statistics.f32` `(T, 2 V, H, W)` holds mean and standard deviation of each variable in physical units, `truth.f32`
`(T, H, W)` the truth, `members.f32` `(T, 10, H, W)` the members, `efi.f32` `(T, H, W)` the extreme forecast index and
`normalisation.f32` `(2, 2 V, H, W)` mean and standard deviation of the statistics at each point. `store.json` is
written last; until then, `preparation.json` records the progress.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from smoe._integrity import read_checked_json, write_checked_json
from smoe.errors import DataError
from smoe.gridded.field_files import DTYPE
from smoe_paper.ens10.data.variables import NUM_MEMBERS, TASKS, TaskName

FORMAT = "smoe ensemble store"
VERSION = 1
METADATA_FILE = "store.json"
PREPARATION_FILE = "preparation.json"
STATISTICS, TRUTH, MEMBERS, EFI, NORMALISATION = (
    f"{name}.f32" for name in ("statistics", "truth", "members", "efi", "normalisation")
)
OUR_FILES = frozenset({METADATA_FILE, PREPARATION_FILE, STATISTICS, TRUTH, MEMBERS, EFI, NORMALISATION})

StatisticsYears = Literal["training", "released"]
EfiOrigin = Literal["file", "computed"]


@dataclass(frozen=True)
class Plan:
    """Contents of a store, known before a field is read.

    Attributes:
        task: Task that selects the fields.
        num_members: Number of members in the statistics.
        starts: Start dates of the forecasts, such as `1998-01-01`.
        latitude: Latitudes from north to south.
        longitude: Longitudes from 0 eastwards.
        has_members: Whether all ten members of the target are stored.
        efi: Origin of the extreme forecast index; None if there is no index.
        efi_years: First and last start year of the computed index.
        train_years: First and last year of training, by the date for which a forecast is valid.
        normalisation: `training` for statistics of the training years, `released` for statistics of all dates.
    """

    task: TaskName
    num_members: int
    starts: tuple[str, ...]
    latitude: tuple[float, ...]
    longitude: tuple[float, ...]
    has_members: bool
    efi: EfiOrigin | None
    efi_years: tuple[int, int]
    train_years: tuple[int, int]
    normalisation: StatisticsYears

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the files."""
        grid = (len(self.latitude), len(self.longitude))
        num_starts, num_channels = len(self.starts), len(TASKS[self.task].channels)
        shapes = {STATISTICS: (num_starts, num_channels, *grid), TRUTH: (num_starts, *grid)}
        if self.has_members:
            shapes[MEMBERS] = (num_starts, NUM_MEMBERS, *grid)
        if self.efi is not None:
            shapes[EFI] = (num_starts, *grid)
        shapes[NORMALISATION] = (2, num_channels, *grid)
        return shapes

    def num_bytes(self, name: str) -> int:
        """Returns the size of a file."""
        size = DTYPE.itemsize
        for length in self.shapes[name]:
            size *= length
        return size

    def to_plain(self) -> dict[str, Any]:
        """Returns the plan as plain values."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Plan:
        """Inverts `to_plain`, after JSON."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()
        }
        return cls(**values)


@dataclass(frozen=True)
class Metadata:
    """Contents of `store.json`.

    Attributes:
        plan: Contents of the store.
        crc32: Checksums of the entries along the first dimension of each file.
        kind: Kind of the source.
        notices: Corrections made by the reader, and other messages.
    """

    plan: Plan
    crc32: dict[str, list[int]]
    kind: str
    notices: tuple[str, ...]

    def write(self, folder: Path) -> None:
        """Writes `store.json` atomically."""
        write_checked_json(folder / METADATA_FILE, asdict(self), FORMAT, VERSION)

    @classmethod
    def read(cls, folder: Path) -> Metadata:
        """Reads `store.json`.

        Raises:
            DataError: If it is missing, of another format or version, or changed.
        """
        content = read_checked_json(folder / METADATA_FILE, FORMAT, VERSION)
        try:
            plan = Plan.from_plain(content["plan"])
            return cls(plan, content["crc32"], content["kind"], tuple(content["notices"]))
        except (TypeError, KeyError) as error:
            raise DataError(f"{folder / METADATA_FILE} lacks what version {VERSION} holds ({error})") from error
