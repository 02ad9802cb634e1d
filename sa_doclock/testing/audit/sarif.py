"""SARIF 2.1.0, the format in which code forges take findings and show them at their lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from .finding import CODES, AuditFinding

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT: Final = "%SRCROOT%"
_PAGE: Final = "https://github.com/sa-doclock/sa-doclock/blob/main/docs/audit.md"


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
            "defaultConfiguration": {"level": "warning" if code == "long-hold" else "error"},
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
