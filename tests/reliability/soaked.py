"""The last long run whose numbers are on the pages: written by pytest, read by tests/docs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.reliability.record import Reliability, Row, by_fault
from tests.reliability.table import long_table, short_table

FILE = Path(__file__).with_name("soaked.json")


def save(found: Reliability, path: Path) -> None:
    """Put these rows in the place of those of the same faults on the same databases."""
    rows = {(row.fault, row.database): row for row in [*load(path).rows(), *found.rows()]}
    inputs = {**load(path).inputs, **found.inputs}
    listed = [{**vars(rows[key]), "errors": dict(rows[key].errors)} for key in sorted(rows)]
    text = json.dumps({"rows": listed, "inputs": inputs}, indent=1)
    path.write_text(f"{text}\n", encoding="utf-8")


def load(path: Path = FILE) -> Reliability:
    """Read what was saved; nothing where there is no such file."""
    found = Reliability()
    if path.exists():
        saved = json.loads(path.read_text(encoding="utf-8"))
        for row in saved["rows"]:
            found.row(row["fault"], row["database"]).add(
                Row(**{**row, "errors": Counter(row["errors"])})
            )
        found.inputs.update(saved["inputs"])
    return found


def in_short() -> Iterator[str]:
    """Yield the table with one row for each fault, then the inputs."""
    found = load()
    yield from short_table(by_fault(found.rows())).splitlines()
    yield ""
    inputs = [f"{count:,} ({what})" for what, count in found.inputs.items()]
    yield f"Inputs fuzzed: {', '.join(inputs)}."


def at_length() -> Iterator[str]:
    """Yield the table with one row for each fault on each database, and what clients were told."""
    yield from long_table(load().rows()).splitlines()
