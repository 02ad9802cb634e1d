"""AuditFinding, one thing that an audit has found, and the findings as a table for people and as SARIF."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

from ...core.key_text import printable
from ...errors import DOCS

Severity = Literal["error", "warning"]

CODES: Final[Mapping[str, str]] = {
    "lost-update": "A row is read without a lock, and written with what was computed from it",
    "detail-without-header": "A detail is written without the lock of its header, which others take",
    "lock-order-cycle": "Transactions lock the same rows or tables in different orders",
    "lock-without-effect": "A lock is asked for, and the SQL that is sent does not lock",
    "stale-after-lock": "A row is locked, and its object keeps the values from before the lock",
    "check-then-insert": "A row is inserted because none was found, and nothing keeps out a second one",
    "capacity": "A row is inserted because the others were counted, and others count them too",
    "max-plus-one": "A number is computed from the greatest or the count, and nothing keeps out a second one",
    "long-hold": "A lock is held while no statement runs",
    "idle-transaction": "A transaction is open while no statement runs",
}
"""The codes of all findings, in the order of the report, each with its sentence."""


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A place of the program that needs a lock, or uses one wrongly.

    :ivar code: ``"lost-update"``, ``"detail-without-header"``, ``"lock-order-cycle"``,
        ``"lock-without-effect"``, ``"stale-after-lock"``, ``"check-then-insert"``, ``"capacity"``,
        ``"max-plus-one"``, ``"long-hold"`` or ``"idle-transaction"``.
    :ivar severity: ``"error"``, or ``"warning"`` for what is only possible, and for the last two codes.
    :ivar certain: True if two transactions at once give a wrong result, or a deadlock; False if that
        depends on what the program means, which its statements do not tell.
    :ivar message: one sentence with the classes, columns and places.
    :ivar sites: the places of the program, each ``file:line``, in the order of the message.
    :ivar cure: the change, with its line of code.
    :ivar count: how often it was seen.
    """

    code: str
    severity: Severity
    certain: bool
    message: str
    sites: tuple[str, ...]
    cure: str
    count: int

    @property
    def possible(self) -> bool:
        """The opposite of ``certain``."""
        return not self.certain

    def __str__(self) -> str:
        return f"{self.severity} {self.code}: {self.message}"


def table_of(findings: Sequence[AuditFinding]) -> Iterator[str]:
    """Yield the lines of a table, each finding with its sentence and its cure."""
    rows = [("severity", "code", "times", "places")]
    rows += [
        (one.severity, one.code, str(one.count), ", ".join(map(shown_site, one.sites)))
        for one in findings
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row, finding in zip(rows, (None, *findings), strict=True):
        severity, code, times, places = row
        yield f"{severity:<{widths[0]}}  {code:<{widths[1]}}  {times:>{widths[2]}}  {places}"
        if finding is not None:
            yield f"    {_shown_text(finding.message, finding.sites)}"
            yield f"    cure: {_shown_text(finding.cure, finding.sites)}"


def shown_site(site: str) -> str:
    """Return the place with its file as seen from the current folder."""
    return printable(site.removeprefix(f"{Path.cwd()}/"))


def _shown_text(text: str, sites: Sequence[str]) -> str:
    for site in sites:
        text = text.replace(site, shown_site(site))
    return printable(text)


_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT: Final = "%SRCROOT%"
_WAITS: Final = ("long-hold", "idle-transaction")
_PAGE: Final = f"{DOCS}/audit.md"


def sarif_of(findings: Sequence[AuditFinding]) -> str:
    """Return a log of one run, each finding at the line that it is about."""
    run = {
        "tool": {"driver": _driver()},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"uri": f"{Path.cwd().as_uri()}/"}},
        "results": [_result(finding) for finding in findings],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _driver() -> dict[str, Any]:
    from ... import __version__  # noqa: PLC0415  # sa_doclock imports this package's neighbours first

    rules = [
        {
            "id": code,
            "shortDescription": {"text": f"{text}."},
            "helpUri": f"{_PAGE}#{code}",
            "defaultConfiguration": {"level": "warning" if code in _WAITS else "error"},
        }
        for code, text in CODES.items()
    ]
    return {"name": "sa-doclock", "version": __version__, "informationUri": _PAGE, "rules": rules}


def _result(finding: AuditFinding) -> dict[str, Any]:
    locations = [_location(site) for site in reversed(finding.sites) if not site.startswith("<")]
    related = [{"id": number, **one} for number, one in enumerate(locations[1:], 1)]
    fingerprint = sha256("|".join((finding.code, *finding.sites)).encode()).hexdigest()
    return {
        "ruleId": finding.code,
        "ruleIndex": list(CODES).index(finding.code),
        "level": finding.severity,
        "message": {"text": f"{finding.message}. Cure: {finding.cure}."},
        "locations": locations[:1],
        "relatedLocations": related,
        "occurrenceCount": finding.count,
        "partialFingerprints": {"codeAndPlaces/v1": fingerprint},
        "properties": {"certain": finding.certain},
    }


def _location(site: str) -> dict[str, Any]:
    file, _, line = site.rpartition(":")
    path = Path(file)
    if path.is_relative_to(Path.cwd()):
        artifact = {"uri": _quoted(path.relative_to(Path.cwd())), "uriBaseId": _ROOT}
    else:
        artifact = {"uri": path.as_uri() if path.is_absolute() else _quoted(path)}
    region = {"startLine": int(line)}
    return {"physicalLocation": {"artifactLocation": artifact, "region": region}}


def _quoted(path: Path) -> str:
    return quote(path.as_posix())
