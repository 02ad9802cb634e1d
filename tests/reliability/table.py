"""The table, as a terminal and a Markdown page show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from tests.reliability.record import Row, by_fault

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
