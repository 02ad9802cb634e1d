"""Runs and counts the tests of one column of the matrix."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.proof.page import Part, table

_ROOT = Path(__file__).parents[2]
_SHOWN = 200  # characters shown of a failure
_LISTED = 100
_EVIDENCE = _ROOT / "tests" / "sql" / "evidence.md"
_CELLS = 3  # the claim, its reason, its tests
_TEST_FILES = re.compile(r"`([\w/]+\.py)`")
_RAN = (0, 1)  # pytest's exit status if it ran its tests


def column(name: str, arguments: Sequence[str]) -> Part:
    """Run this database's tests with these pytest arguments, and count them.

    pytest's output goes to the terminal.
    """
    with TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        command = [sys.executable, "-m", "pytest", f"--databases={name}", f"--junitxml={results}"]
        run = subprocess.run(
            [*command, *arguments], cwd=_ROOT, env=_environment(name, os.environ), check=False
        )
        if run.returncode not in _RAN or not results.exists():
            return Part("Tests", [f"pytest has ended with {run.returncode}"], holds=False)
        return counted(results.read_text("utf-8"), arguments)


def counted(results: str, arguments: Sequence[str]) -> Part:
    """Return the counts of a run and its failures, from a JUnit report."""
    cases = list(ET.fromstring(results).iter("testcase"))
    kinds = Counter(_kind(case) for case in cases)
    bad = [case for case in cases if _kind(case) in ("failed", "error")]
    limited = f", limited by `{' '.join(arguments)}`" if arguments else ""
    counts = ", ".join(f"{kinds[kind]} {kind}" for kind in ("passed", "failed", "error", "skipped"))
    lines = [f"{counts}{limited}."]
    if bad:
        lines.append("")
    lines += [f"- `{_name(case)}`: {_reason(case)}" for case in bad[:_LISTED]]
    if len(bad) > _LISTED:
        lines.append(f"- and {len(bad) - _LISTED} more")
    lines += ["", "What the page says of a real server, and how its tests have ended here:", ""]
    lines += table([*_results_of_claims(cases)])
    return Part("Tests", lines, holds=not bad and kinds["passed"] > 0)


def claims() -> Mapping[str, Sequence[str]]:
    """Return the claims that need tests on a real server, each with its test files."""
    found = {}
    for line in _EVIDENCE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == _CELLS and "L" in cells[1].split(", "):
            found[cells[0]] = [f"tests/{path}" for path in _TEST_FILES.findall(cells[2])]
    return found


def _results_of_claims(cases: Sequence[ET.Element]) -> Iterator[Mapping[str, object]]:
    """Yield each claim with the results of its tests."""
    for claim, files in claims().items():
        modules = {path.removesuffix(".py").replace("/", ".") for path in files}
        found = Counter(_kind(case) for case in cases if case.get("classname") in modules)
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(found.items()))
        yield {"Claim": claim, "Tests": counts or "none has run"}


def _environment(name: str, known: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of the run: a test without its server fails."""
    return {**known, "SA_DOCLOCK_TEST_REQUIRE": name}


def _kind(case: ET.Element) -> str:
    for tag, kind in (("failure", "failed"), ("error", "error"), ("skipped", "skipped")):
        if case.find(tag) is not None:
            return kind
    return "passed"


def _name(case: ET.Element) -> str:
    return f"{case.get('classname')}.{case.get('name')}"


def _reason(case: ET.Element) -> str:
    found = case.find("failure")
    if found is None:
        found = case.find("error")
    message = "" if found is None else found.get("message", "")
    return " ".join(message.split())[:_SHOWN]
