"""The findings as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from .finding import AuditFinding


def report_of(
    findings: Sequence[AuditFinding],
    statements: int,
    transactions: int,
    left_out: int,
    failures: tuple[int, str],
) -> str:
    """Return a table, the sentence and the cure of each finding, and what was watched."""
    lines = [*_table(findings), ""] if findings else []
    errors = sum(one.severity == "error" for one in findings)
    lines.append(
        f"{errors} errors, {len(findings) - errors} warnings in {statements} statements of "
        f"{transactions} transactions"
    )
    if left_out:
        lines.append(f"{left_out} observations had no room, so findings may be missing")
    times, first = failures
    if times:
        lines.append(f"the audit has failed {times} times, so findings may be missing; the first:")
        lines.append(first)
    return "\n".join(lines)


def _table(findings: Sequence[AuditFinding]) -> Iterator[str]:
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
    return site.removeprefix(f"{Path.cwd()}/")


def _shown_text(text: str, sites: Sequence[str]) -> str:
    for site in sites:
        text = text.replace(site, shown_site(site))
    return text
