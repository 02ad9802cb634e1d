"""AuditFinding, one result of an audit, and the report of all findings as a table, JSON and SARIF."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from os.path import normpath
from pathlib import Path
from textwrap import wrap
from typing import Any, Final, Literal
from urllib.parse import quote

import sa_doclock
from sa_doclock.errors import DOCS
from sa_doclock.testing.instruments import printable

from .paths import Paths
from .stories import FIRST, story_of

Severity = Literal["error", "warning"]

CODES: Final[Mapping[str, str]] = {
    "lost-update": "A row is read without a lock, then written with a value computed from it",
    "detail-without-header": "A detail is written without the lock on its header, which other code takes",
    "lock-order-cycle": "Transactions lock the same rows or tables in different orders",
    "lock-without-effect": "The program requests a lock, but the SQL that is sent takes none",
    "stale-after-lock": "A row is locked, but its object keeps the values from before the lock",
    "check-then-insert": "A row is inserted because a search found none, and nothing prevents a duplicate",
    "capacity": "A row is inserted after a count, and concurrent transactions get the same count",
    "max-plus-one": "A number is computed from the maximum or the count, and nothing prevents a duplicate",
    "long-hold": "A lock is held while no statement runs",
    "idle-transaction": "A transaction is open while no statement runs",
}
"""The codes of all findings, in the order of the report, each with its sentence."""


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A place in the program that needs a lock, or uses a lock incorrectly.

    :ivar code: ``"lost-update"``, ``"detail-without-header"``, ``"lock-order-cycle"``,
        :ivar severity: ``"error"``, or ``"warning"`` for possible findings and for the last two codes.
    :ivar certain: True if two concurrent transactions give a wrong result or a deadlock; False if
        that depends on the purpose of the program, which its statements do not show.
    :ivar message: one sentence that names the classes, columns and places.
    :ivar sites: places in the program, each ``file:line``, in the order of the message.
    :ivar cure: the change to make, with its line of code.
    :ivar count: how often the audit saw it.
    :ivar callers: lines of other files that called the last of these places, the nearest first.
    :ivar tests: the tests that ran them, by pytest's node ids; at most the first 20 of a place.
    """

    code: str
    severity: Severity
    certain: bool
    message: str
    sites: tuple[str, ...]
    cure: str
    count: int
    callers: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.severity} {self.code}: {self.message}"


def each_once(findings: Sequence[AuditFinding]) -> list[AuditFinding]:
    """Return each finding once, even if fixtures redefine classes, or several lines flush.

    A possible finding at the lines of a certain one is dropped.
    """
    by_message: dict[tuple[str, str], AuditFinding] = {}
    for one in findings:
        known = by_message.get((one.code, one.message))
        count = one.count + (0 if known is None else known.count)
        by_message[one.code, one.message] = replace(known or one, count=count)
    found = by_message.values()
    certain = {(one.code, one.sites) for one in found if one.certain}
    return [one for one in found if one.certain or (one.code, one.sites) not in certain]


_SHOWN_TESTS: Final = 3
_ALTERNATIVES: Final = re.compile(r"(?<=;) (?=or\b)|(?<=\.) (?=With sa_doclock: )")


def table_of(findings: Sequence[AuditFinding], paths: Paths) -> Iterator[str]:
    """Yield the lines of a table: each finding with its sentence, story and cure."""
    rows = [("severity", "code", "times", "places")]
    rows += [
        (one.severity, one.code, str(one.count), ", ".join(map(paths.site, one.sites)))
        for one in findings
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    told: set[str] = set()
    for row, finding in zip(rows, (None, *findings), strict=True):
        severity, code, times, places = row
        yield f"{severity:<{widths[0]}}  {code:<{widths[1]}}  {times:>{widths[2]}}  {places}"
        if finding is not None:
            yield from (f"    {line}" for line in _details_of(finding, paths))
            if finding.code not in told:
                told.add(finding.code)
                yield from (f"    {line}" for line in _story_of(finding, paths))


def _details_of(finding: AuditFinding, paths: Paths) -> Iterator[str]:
    yield paths.text(finding.message, finding.sites)
    if finding.callers:
        yield f"called from {', '.join(map(paths.site, finding.callers))}"
    if finding.tests:
        shown, more = finding.tests[:_SHOWN_TESTS], len(finding.tests) - _SHOWN_TESTS
        yield f"in {', '.join(map(printable, shown))}{f' and {more} more tests' if more > 0 else ''}"
    first, *others = _ALTERNATIVES.split(paths.text(finding.cure, finding.sites))
    yield f"cure: {first}"
    yield from (f"      {one}" for one in others)


_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT: Final = "%SRCROOT%"
_WAITS: Final = ("long-hold", "idle-transaction")
_PAGE: Final = f"{DOCS}/audit.html"


_WIDTH: Final = 48


def _story_of(finding: AuditFinding, paths: Paths) -> Iterator[str]:
    steps = story_of(finding.code, [paths.site(one) for one in finding.sites])
    if not steps:
        return
    yield f"{'first':<{_WIDTH}} | second"
    yield f"{'-' * _WIDTH} | {'-' * _WIDTH}"
    for who, text in steps:
        for line in wrap(text, _WIDTH, subsequent_indent="  "):
            yield f"{line:<{_WIDTH}} |" if who == FIRST else f"{'':<{_WIDTH}} | {line}"


def json_of(findings: Sequence[AuditFinding], paths: Paths) -> str:
    """Return a list of objects with the attributes of AuditFinding, and the story of each."""
    return json.dumps([_object(one, paths) for one in findings], indent=2)


def _object(finding: AuditFinding, paths: Paths) -> dict[str, Any]:
    sites = tuple(map(paths.relative, finding.sites))
    return {
        **asdict(finding),
        "message": paths.text(finding.message, finding.sites, marks=False),
        "cure": paths.text(finding.cure, finding.sites, marks=False),
        "sites": sites,
        "callers": tuple(map(paths.relative, finding.callers)),
        "in_tests": all(map(paths.is_of_tests, finding.sites)),
        "story": story_of(finding.code, sites),
    }


def sarif_of(findings: Sequence[AuditFinding], paths: Paths) -> str:
    """Return a SARIF log with one run, and each finding at its line."""
    run = {
        "tool": {"driver": _driver()},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"uri": f"{paths.root.as_uri()}/"}},
        "results": [_result(finding, paths) for finding in findings],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _driver() -> dict[str, Any]:
    rules = [
        {
            "id": code,
            "shortDescription": {"text": f"{text}."},
            "helpUri": f"{_PAGE}#{code}",
            "defaultConfiguration": {"level": "warning" if code in _WAITS else "error"},
        }
        for code, text in CODES.items()
    ]
    return {
        "name": "sa-doclock",
        "version": sa_doclock.__version__,
        "informationUri": _PAGE,
        "rules": rules,
    }


def _result(finding: AuditFinding, paths: Paths) -> dict[str, Any]:
    sites = [site for site in reversed(finding.sites) if not site.startswith("<")]
    locations = [_location(site, paths) for site in sites]
    callers = [_location(site, paths) for site in finding.callers]
    related = [{"id": number, **one} for number, one in enumerate([*locations[1:], *callers], 1)]
    named = (finding.code, *map(paths.relative, finding.sites))
    fingerprint = sha256("|".join(named).encode()).hexdigest()
    message = paths.text(f"{finding.message}. Cure: {finding.cure}.", finding.sites)
    return {
        "ruleId": finding.code,
        "ruleIndex": list(CODES).index(finding.code),
        "level": finding.severity,
        "message": {"text": message},
        "locations": locations[:1],
        "relatedLocations": related,
        "occurrenceCount": finding.count,
        "partialFingerprints": {"codeAndPlaces/v1": fingerprint},
        "properties": {"certain": finding.certain, "tests": list(finding.tests)},
    }


def _location(site: str, paths: Paths) -> dict[str, Any]:
    file, _, line = site.rpartition(":")
    path = Path(normpath(file))
    if path.is_relative_to(paths.root):
        artifact = {"uri": _quoted(path.relative_to(paths.root)), "uriBaseId": _ROOT}
    else:
        artifact = {"uri": path.as_uri() if path.is_absolute() else _quoted(path)}
    region = {"startLine": int(line)}
    return {"physicalLocation": {"artifactLocation": artifact, "region": region}}


def _quoted(path: Path) -> str:
    return quote(path.as_posix())
