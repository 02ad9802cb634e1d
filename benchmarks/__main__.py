"""Run all benchmarks; write benchmarks/RESULTS.md: ``python -m benchmarks [--quick]``.

Each script is a separate process.  One that fails or takes too long costs its own figures,
which the report then calls missing, with the reason.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from benchmarks.lab import machine, report
from benchmarks.lab.figures import Findings

SCRIPTS = (
    *("overhead", "documents", "layers", "hot_document", "combined"),
    *("stress", "details", "scale", "async_gate", "linear"),
    *("async_overhead", "sessions", "guard", "queues", "instructions", "sqlalchemy_2_0"),
)
HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
MOST = 480.0  # seconds for one script
QUICK_DATABASES = "sqlite,postgresql"
NOT_QUICK = ("documents", "scale", "queues", "sqlalchemy_2_0")  # skipped in a quick run


def main() -> int:
    options = _arguments()
    out = Console()
    began = time.monotonic()
    busy = machine.load()
    with tempfile.TemporaryDirectory() as folder:
        found = []
        names = [name for name in SCRIPTS if not (options.quick and name in NOT_QUICK)]
        for number, name in enumerate(names, 1):
            passed = time.monotonic() - began
            out.rule(f"[{number}/{len(names)}] {name}, after {passed:.0f} s", align="left")
            found.append(run(name, Path(folder) / f"{name}.json", options))
    verdicts = report.verdicts(found)
    minutes = (time.monotonic() - began) / 60
    described = machine.described() | {"load before": busy, "took": f"{minutes:.1f} minutes"}
    if options.quick:
        described["not exact"] = "a quick run; what it left out has no figure"
    out.rule(align="left")
    show(out, verdicts)
    if options.results:
        drawn = sorted(options.plot.glob("*.svg")) if options.plot else []
        pictures = [os.path.relpath(one, options.results.parent) for one in drawn]
        page = report.markdown(verdicts, described, servers_of(found), pictures)
        options.results.write_text(page, encoding="utf-8")
        out.print(f"written: {options.results}")
    return 1 if any(one.script in one.missing for one in found) else 0


def run(name: str, path: Path, options: argparse.Namespace) -> Findings:
    """Run one script; return its findings, or the reason why it has none."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(path)]
    if options.quick:
        command += ["--quick", "--databases", QUICK_DATABASES]
    if options.plot:
        command += ["--plot", str(options.plot)]
    reason = None
    try:
        status = subprocess.run(command, timeout=MOST, cwd=HERE.parent, check=False).returncode
        if status:
            reason = f"{name}.py has failed, with exit status {status}"
    except subprocess.TimeoutExpired:
        reason = f"{name}.py has taken longer than {MOST:g} s"
    found = Findings.read(path) if path.exists() else Findings(name)
    if reason is not None:
        found.lacks("", reason)
    return found


def show(out: Console, verdicts: Iterable[report.Verdict]) -> None:
    verdicts = list(verdicts)
    colours = {"met": "green", "**missed**": "red", "published": "green", "no figure": "yellow"}
    for one in verdicts:
        word = f"[{colours[one.word]}]{one.word.strip('*'):9}[/]"
        told = f"{one.goal.group}: {one.goal.what}: {one.shown or one.reason}"
        out.print(f"{word} {escape(told)}, goal {one.goal.wanted}", soft_wrap=True, highlight=False)
    out.print(report.summary(verdicts))


def servers_of(found: Iterable[Findings]) -> dict[str, str]:
    servers: dict[str, str] = {}
    for one in found:
        servers.update(one.servers)
    return servers


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="in under a minute; not exact")
    parser.add_argument("--results", type=Path, help="write the report to this file")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw pictures there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
