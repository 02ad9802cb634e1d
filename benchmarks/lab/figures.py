"""The results of a script: figures by name, and the reasons for missing ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Figure(NamedTuple):
    """A value, with its 95 % interval if it was measured more than once."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.3g}"
        return f"{self.value:.3f} [{self.low:.3f} .. {self.high:.3f}]"


class Absent(Exception):
    """A value cannot be measured here; the text gives the reason."""


class Findings:
    """The figures of one script; ``series`` contains the data for its picture."""

    def __init__(self, script: str, purpose: str = "") -> None:
        self.script = script
        self.purpose = purpose
        self.figures: dict[str, Figure] = {}
        self.missing: dict[str, str] = {}
        self.servers: dict[str, str] = {}
        self.series: dict[str, Any] = {}

    def note(self, name: str, figure: Figure) -> None:
        self.figures[f"{self.script}.{name}"] = figure

    def lacks(self, name: str, reason: str) -> None:
        """Mark every figure whose name starts with this one as missing for this reason; "" means all."""
        self.missing[f"{self.script}.{name}".rstrip(".")] = reason

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self._as_json(), indent=2) + "\n", encoding="utf-8")

    def _as_json(self) -> dict[str, Any]:
        figures = {name: figure._asdict() for name, figure in self.figures.items()}
        return {**vars(self), "figures": figures}

    @classmethod
    def read(cls, path: Path) -> Findings:
        found = json.loads(path.read_text(encoding="utf-8"))
        findings = cls(found["script"])
        figures = {name: Figure(**figure) for name, figure in found["figures"].items()}
        vars(findings).update({**found, "figures": figures})
        return findings


def reason_in(missing: Mapping[str, str], name: str) -> str | None:
    """Return the reason for a missing figure: the most specific one for the figure and its groups."""
    while name:
        if name in missing:
            return missing[name]
        name = name.rpartition(".")[0]
    return None
