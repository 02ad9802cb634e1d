"""The last long run whose numbers are on the pages: written by pytest, read by tests/docs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.reliability.record import Reliability, Row, by_fault
from tests.reliability.table import long_table, short_table

FILE = Path(__file__).with_name("soaked.json")


def save(found: Reliability, path: Path) -> None:
    """Put these rows in the place of those of the same faults on the same databases."""
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
    """Return the rows and the inputs of :func:`as_json`."""
    found = Reliability()
    for row in saved["rows"]:
        found.row(row["fault"], row["database"]).add(
            Row(**{**row, "errors": Counter(row["errors"])})
        )
    found.inputs.update(saved["inputs"])
    return found


def load(path: Path = FILE) -> Reliability:
    """Read what was saved; nothing where there is no such file."""
    return (
        from_json(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else Reliability()
    )


#: The beginning of the names of the faults of tests/reliability/failover, which have a page of their own too.
SEVERAL = "a server of several killed"


def in_short() -> Iterator[str]:
    """Yield the table with one row for each fault, then the inputs."""
    found = load()
    yield from short_table(by_fault(found.rows())).splitlines()
    yield ""
    inputs = [f"{count:,} ({what})" for what, count in found.inputs.items()]
    yield f"Inputs fuzzed: {', '.join(inputs)}."


def failovers() -> Iterator[str]:
    """Yield the rows in which another server takes the place of one."""
    yield from long_table(
        [row for row in load().rows() if row.fault.startswith(SEVERAL)]
    ).splitlines()
