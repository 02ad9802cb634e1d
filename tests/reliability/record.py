"""The injected faults for each database and their effects, for a terminal and a Markdown page."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

# --------------------------------------------------------------------------------------------------
# The injected faults for each database, and their effects: the rows of the table.


@dataclass
class Row:
    """One fault on one database; a test counts in it while it runs.

    :ivar fault: in the past tense, as in "backends terminated".
    :ivar database: the column of the matrix, as in "sqlite-journal".
    :ivar injected: the number of injections.
    :ivar acknowledged: updates whose commit returned, and that the test looked for afterwards.
    :ivar lost: the acknowledged updates that were missing.
    :ivar inconsistent: documents with wrong sums, or only partly saved.
    :ivar errors: the errors that reached clients, by class name.
    :ivar note: other measurements, for the long form.
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
        """Count an error that a client received."""
        self.errors[type(error).__name__] += 1

    def add(self, other: Row) -> None:
        """Add another row's counts."""
        self.injected += other.injected
        self.acknowledged += other.acknowledged
        self.lost += other.lost
        self.inconsistent += other.inconsistent
        self.errors += other.errors
        self.note = "; ".join(note for note in (self.note, other.note) if note)


class Reliability:
    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Row] = {}
        self.inputs: Counter[str] = Counter()

    def row(self, fault: str, database: str) -> Row:
        """Return the row of this fault on this database; all tests share it."""
        return self._rows.setdefault((fault, database), Row(fault, database))

    def fuzzed(self, what: str, inputs: int) -> None:
        """Count the generated inputs that tests tried."""
        self.inputs[what] += inputs

    def add(self, other: Reliability) -> None:
        """Add another process's counts."""
        for row in other.rows():
            self.row(row.fault, row.database).add(row)
        self.inputs += other.inputs

    def rows(self) -> list[Row]:
        """Return the rows in the order of their first use."""
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
# The table, for a terminal and for a Markdown page.

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
    """Name the classes, the most common first."""
    return ", ".join(f"{count:,} {name}" for name, count in errors.most_common())


# --------------------------------------------------------------------------------------------------
# The duration of a test, and the last long run, whose numbers the pages show.

# --------------------------------------------------------------------------------------------------
# The duration of a test: seconds in ``make test``, as long as configured in ``make soak``.


def _say_nothing(_: str) -> None:
    pass


@dataclass(frozen=True)
class Soak:
    """The source of every length.

    :ivar seconds: for all tests of one server; 0 is the short form.
    """

    seconds: float = 0
    say: Callable[[str], None] = field(default=_say_nothing, repr=False)

    @property
    def long(self) -> bool:
        return self.seconds > 0

    def times(self, *, short: int, long: int) -> int:
        """Return how many times to repeat work of any duration."""
        return long if self.long else short

    def rounds(self, *, short: int, share: float = 1.0) -> Iterator[int]:
        """Count from 0: ``short`` rounds, or in the long form for this share of the seconds.

        The short form ignores the clock; the long form does at least ``short`` rounds.
        """
        number = 0
        end = time.monotonic() + self.seconds * share
        while number < short or (self.long and time.monotonic() < end):
            yield number
            number += 1

    def progress(self, text: str) -> None:
        """Report the test's progress, past pytest's capture; nothing in the short form."""
        if self.long:
            self.say(text)


# --------------------------------------------------------------------------------------------------
# The last long run, whose numbers the pages show: pytest writes it, tests/docs reads it.

FILE = Path(__file__).with_name("soaked.json")


def save(found: Reliability, path: Path) -> None:
    """Replace the rows of the same faults on the same databases."""
    before = load(path)
    rows = {(row.fault, row.database): row for row in [*before.rows(), *found.rows()]}
    both = Reliability()
    for key in sorted(rows):
        both.row(*key).add(rows[key])
    both.inputs.update({**before.inputs, **found.inputs})
    text = json.dumps(as_json(both), indent=1)
    path.write_text(f"{text}\n", encoding="utf-8")


def as_json(found: Reliability) -> dict[str, Any]:
    """Return the rows and the inputs as plain types."""
    rows = [{**vars(row), "errors": dict(row.errors)} for row in found.rows()]
    return {"rows": rows, "inputs": dict(found.inputs)}


def from_json(saved: dict[str, Any]) -> Reliability:
    """Return the rows and the inputs from :func:`as_json`."""
    found = Reliability()
    for row in saved["rows"]:
        found.row(row["fault"], row["database"]).add(
            Row(**{**row, "errors": Counter(row["errors"])})
        )
    found.inputs.update(saved["inputs"])
    return found


def load(path: Path = FILE) -> Reliability:
    """Read the saved results; return none if the file does not exist."""
    return (
        from_json(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else Reliability()
    )


#: The beginning of the names of the faults of tests/reliability/failover, which also have a page
#: of their own.
SEVERAL = "a server of several killed"


def in_short() -> Iterator[str]:
    """Yield the table with one row for each fault, then the inputs."""
    found = load()
    yield from short_table(by_fault(found.rows())).splitlines()
    yield ""
    inputs = [f"{count:,} ({what})" for what, count in found.inputs.items()]
    yield f"Inputs fuzzed: {', '.join(inputs)}."


def failovers() -> Iterator[str]:
    """Yield the rows in which another server takes over."""
    yield from long_table(
        [row for row in load().rows() if row.fault.startswith(SEVERAL)]
    ).splitlines()
