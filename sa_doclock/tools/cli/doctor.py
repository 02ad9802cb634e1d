"""``sa-doclock doctor``: settings of a database that are wrong for locks, and the cure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Final, Optional

import typer
from rich.console import Console
from rich.text import Text

from ...keys import printable
from ..doctor import SEVERITIES, Finding, Severity, check_database
from .console import JsonList, ServerUrl, errors_as_text, import_name, results, say
from .database import BadUsage, open_database

_STYLES: Final[Mapping[Severity, str]] = {"error": "bold red", "warning": "bold yellow", "info": ""}


def doctor(
    url: ServerUrl,
    models: Annotated[
        Optional[str],  # noqa: UP045  # as Url
        typer.Option(
            metavar="MODULE:BASE",
            help="The declarative base of the documents: their tables are checked too.",
            show_default="none",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit status 1 for warnings too.")
    ] = False,
    json_wanted: JsonList = False,
) -> None:
    """Find settings that make locks wrong or slow, and the cure.

    Reads settings and catalogs; takes no lock and changes nothing.

    Exit status: 0; 1 for warnings with --strict; 2 for errors, or if it cannot be checked.
    """
    with errors_as_text(database_error=2), open_database(url, 1, patient=False) as target:
        base = None if models is None else import_name(models)
        try:
            found = check_database(target.engine, base)
        except TypeError as error:
            raise BadUsage(f"--models: {error}") from None
    if json_wanted:
        say(json.dumps([asdict(finding) | {"link": finding.link} for finding in found], indent=2))
    else:
        print_report(results(), f"{target.product} {target.version}, {target.url}", found)
    severities = {finding.severity for finding in found}
    if "error" in severities:
        raise typer.Exit(2)
    if strict and "warning" in severities:
        raise typer.Exit(1)


def print_report(out: Console, database: str, found: Sequence[Finding]) -> None:
    """Print the findings, and their number by severity."""
    out.print(database, soft_wrap=True)
    for finding in found:
        out.print()
        severity = (finding.severity, _STYLES[finding.severity])
        out.print(Text.assemble(severity, f": {printable(finding.text)}"), soft_wrap=True)
        for line in (finding.cure, finding.link):
            out.print(f"  {printable(line)}", soft_wrap=True)
    counts = [sum(finding.severity == severity for finding in found) for severity in SEVERITIES]
    out.print()
    out.print("{} errors, {} warnings, {} to know".format(*counts))
