"""The injected faults for each database and their effects, as a terminal and a Markdown page show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.console import Console
from rich.table import Table

# --------------------------------------------------------------------------------------------------
# The injected faults for each database, and their effects: the rows of the table.


@dataclass
class Row:
    """One fault on one database; a test counts in it while it runs.

    :ivar fault: in the past, as in "backends terminated".
    :ivar database: the column of the matrix, as in "sqlite-journal".
    :ivar injected: how often it was done.
    :ivar acknowledged: updates whose commit had returned, and that were looked for afterwards.
    :ivar lost: of these, the ones that were not there.
    :ivar inconsistent: documents that did not add up, or were there in part.
    :ivar errors: what reached the clients, by the name of its class.
    :ivar note: what else was measured, for the long form.
    """

    fault: str
    database: str
    injected: int = 0
    acknowledged: int = 0
    lost: int = 0
    inconsistent: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    note: str = ""

    def reached_a_client(self, error: BaseException) -> None:
        """Count an error that a client was given."""
        self.errors[type(error).__name__] += 1

    def add(self, other: Row) -> None:
        """Count in what another row has counted."""
        self.injected += other.injected
        self.acknowledged += other.acknowledged
        self.lost += other.lost
        self.inconsistent += other.inconsistent
        self.errors += other.errors
        self.note = "; ".join(note for note in (self.note, other.note) if note)


class Reliability:
    """All rows of a run."""

    def __init__(self) -> None:
        """Begin with none."""
        self._rows: dict[tuple[str, str], Row] = {}
        self.inputs: Counter[str] = Counter()

    def row(self, fault: str, database: str) -> Row:
        """Return the row of this fault on this database; the same one for every test."""
        return self._rows.setdefault((fault, database), Row(fault, database))

    def fuzzed(self, what: str, inputs: int) -> None:
        """Count generated inputs that were tried out."""
        self.inputs[what] += inputs

    def add(self, other: Reliability) -> None:
        """Count in what another process has counted."""
        for row in other.rows():
            self.row(row.fault, row.database).add(row)
        self.inputs += other.inputs

    def rows(self) -> list[Row]:
        """Return the rows in the order in which they were first asked for."""
        return list(self._rows.values())


def by_fault(rows: Iterable[Row]) -> list[Row]:
    """Add up the databases of each fault: one row for each."""
    sums: dict[str, Row] = {}
    databases: dict[str, list[str]] = {}
    for row in rows:
        sums.setdefault(row.fault, Row(row.fault, "")).add(row)
        databases.setdefault(row.fault, []).append(row.database)
    for fault, total in sums.items():
        total.database = ", ".join(databases[fault])
    return list(sums.values())


# --------------------------------------------------------------------------------------------------
# The table, as a terminal and a Markdown page show it.

_COUNTED = ("injected", "acknowledged", "lost", "inconsistent")
_WIDE = 250  # no cell is ever cut; a terminal wraps it


def short_table(rows: Sequence[Row]) -> str:
    """Render one line for each fault, its databases added up."""
    return _rendered(by_fault(rows), by_database=False)


def long_table(rows: Sequence[Row]) -> str:
    """Render one line for each fault and database, with the errors that reached a client."""
    return _rendered(rows, by_database=True)


def _rendered(rows: Sequence[Row], *, by_database: bool) -> str:
    table = Table(box=box.MARKDOWN)
    table.add_column("fault", no_wrap=True)
    table.add_column("database", no_wrap=True)
    for title in ("injected", "updates acknowledged", "lost", "inconsistent"):
        table.add_column(title, justify="right", no_wrap=True)
    if by_database:
        table.add_column("what reached a client, and notes", no_wrap=True)
    for row in rows:
        counts = [f"{getattr(row, name):,}" for name in _COUNTED]
        reported = "; ".join(filter(None, (listed_errors(row.errors), row.note)))
        table.add_row(row.fault, row.database, *counts, *([reported] if by_database else []))
    console = Console(width=_WIDE, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines() if line.strip())


def listed_errors(errors: Counter[str]) -> str:
    """Name the classes, the commonest first."""
    return ", ".join(f"{count:,} {name}" for name, count in errors.most_common())
