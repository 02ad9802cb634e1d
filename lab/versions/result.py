"""Result: the outcome of a component's tests; one file in ``results`` for each.

The table has a row for each file, whoever wrote it.  A run that ``make versions`` cannot do, such as that
of a Python built from source, calls :func:`save` with its own name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

_FOLDER = Path(__file__).with_name("results")


@dataclass(frozen=True)
class Result:
    """The last run of a component.

    :ivar version: as the component reports it, such as ``14.23``.
    :ivar tested_with: the other versions: server, driver, SQLAlchemy, Python.
    :ivar date: in ISO format.
    :ivar skipped: the number of skipped tests by reason.
    """

    component: str
    product: str
    version: str
    tested_with: str
    date: str
    passed: int
    failed: int
    skipped: Mapping[str, int]

    @property
    def tests(self) -> int:
        """The number of all tests."""
        return self.passed + self.failed + sum(self.skipped.values())


def save(result: Result) -> None:
    """Save the result in place of an earlier run's."""
    text = json.dumps(asdict(result), indent=2) + "\n"
    (_FOLDER / f"{result.component}.json").write_text(text, encoding="utf-8")


def load() -> dict[str, Result]:
    """Return all results, by component."""
    read = (json.loads(path.read_text(encoding="utf-8")) for path in _FOLDER.glob("*.json"))
    return {one["component"]: Result(**one) for one in read}
