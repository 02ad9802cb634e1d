"""Result: what came of the tests of a component; one file in ``results`` for each.

The table has a row for each file, whoever has written it: a run that ``make versions`` cannot do, such
as that of a Python built from its sources, calls :func:`save` with its own name.
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

    :ivar version: as it says itself, as in ``14.23``.
    :ivar tested_with: the others: server, driver, SQLAlchemy, Python.
    :ivar date: in ISO format.
    :ivar skipped: how many tests, by the reason.
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
        """The number of all of them."""
        return self.passed + self.failed + sum(self.skipped.values())


def save(result: Result) -> None:
    """Write the result over that of an earlier run."""
    text = json.dumps(asdict(result), indent=2) + "\n"
    (_FOLDER / f"{result.component}.json").write_text(text, encoding="utf-8")


def load() -> dict[str, Result]:
    """Return all results, by component."""
    read = (json.loads(path.read_text(encoding="utf-8")) for path in _FOLDER.glob("*.json"))
    return {one["component"]: Result(**one) for one in read}
