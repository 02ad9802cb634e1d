"""The shared frame of a script: arguments, databases, a table, JSON, a picture."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.lab import pictures
from benchmarks.lab.figures import Absent, Findings
from benchmarks.lab.machine import one_line
from benchmarks.lab.pairing import Effort
from benchmarks.lab.places import NAMES, Place, place

WIDTH = 150
"""Columns, also used for output to a file."""

QUICK = 0.08
"""The time of a quick run, as a fraction of a full run's."""


class Script:
    """One run of one script."""

    def __init__(self, findings: Findings, options: argparse.Namespace, folder: Path) -> None:
        self.findings = findings
        self.options = options
        self.quick: bool = options.quick
        self.tiny: bool = options.tiny
        self.console = Console()
        self.console.width = max(self.console.width, WIDTH)
        self._folder = folder

    def wants(self, part: str) -> bool:
        """Return whether to measure this part: without ``--only``, all parts."""
        return not self.options.only or part in self.options.only

    def effort(self, seconds: float) -> Effort:
        """Return the amount of measurement for a script that usually takes this many seconds."""
        if self.tiny:
            return Effort(seconds=0, rounds=1, repeat=1)
        if self.options.seconds is not None:
            seconds = self.options.seconds
        elif self.quick:
            seconds *= QUICK
        effort = Effort(seconds)
        return effort._replace(fewest=3, slice=0.02) if self.quick else effort

    def on_each(self, names: Iterable[str], measure: Callable[[Script, Place], None]) -> None:
        """Measure on each database of these names that is requested and available.

        A failure costs the figures of its own database only.
        """
        given = dict(one.split("=", 1) for one in self.options.url)
        for name in names:
            if name not in self.options.databases:
                if not self.options.only:  # otherwise another run may have its figures
                    self.findings.lacks(name, f"{name} was left out by --databases")
                continue
            try:
                with closing(place(name, given, self._folder)) as found:
                    self.findings.servers[name] = found.version
                    measure(self, found)
            except Absent as absent:
                self.lacks(name, absent)
            except Exception as error:  # report any error, and measure the rest
                if self.tiny:
                    raise
                self.console.print_exception(max_frames=6)
                self.lacks(name, Absent(f"{type(error).__name__}: {first_line(error)}"))

    def lacks(self, name: str, absent: Absent) -> None:
        """Report these figures as missing, in the table and in the findings."""
        self.findings.lacks(name, str(absent))
        self.console.print(f"[yellow]missing[/] {escape(name)}: {escape(str(absent))}")

    def table(self, title: str, *columns: str) -> Table:
        table = Table(title=title, title_justify="left", box=box.SIMPLE)
        for number, column in enumerate(columns):
            table.add_column(column, justify="right" if number else "left", no_wrap=True)
        return table

    def show(self, table: Table) -> None:
        if table.row_count:
            self.console.print(table)


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [repr(error)])[0]


@contextmanager
def run(
    module: str, purpose: str, arguments: Sequence[str] | None, parts: Sequence[str] = ()
) -> Iterator[Script]:
    """Run a script; write its findings at the end, even after an error.

    :param module: ``__file__`` of the script.
    :param purpose: its docstring; the first paragraph says what it measures.
    :param parts: the names of its parts; one run may measure only some of them.
    """
    paragraphs = purpose.split("\n\n")
    options = _arguments(purpose, arguments, parts)
    findings = Findings(Path(module).stem, " ".join(paragraphs[0].split()))
    if options.only and options.json and options.json.exists():
        findings = Findings.read(options.json)  # includes the parts of other runs
    with tempfile.TemporaryDirectory() as folder:
        script = Script(findings, options, Path(folder))
        script.console.print(f"[bold]{escape(findings.purpose)}[/]")
        script.console.print(one_line(), highlight=False)
        try:
            yield script
        finally:
            if options.json:
                findings.write(options.json)
    if options.plot:
        _draw(script, findings, options.plot)


def _draw(script: Script, findings: Findings, folder: Path) -> None:
    draw: Callable[[Findings, Path], None] | None = pictures.PICTURES.get(findings.script)
    if draw is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    try:
        draw(findings, folder / f"{findings.script}.svg")
    except Absent as absent:
        script.console.print(f"[yellow]no picture[/]: {escape(str(absent))}")


def _arguments(
    purpose: str, arguments: Sequence[str] | None, parts: Sequence[str]
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=purpose, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, help="of one comparison")
    parser.add_argument("--quick", action="store_true", help="measure less, and less exactly")
    parser.add_argument("--tiny", action="store_true", help="see that it runs; measure nothing")
    parser.add_argument(
        "--databases",
        type=lambda names: names.split(","),
        default=list(NAMES),
        help=f"of {', '.join(NAMES)}; separated by commas",
    )
    parser.add_argument(
        "--url",
        action="append",
        default=[],
        metavar="NAME=URL",
        help="of a server; else SA_DOCLOCK_TEST_POSTGRESQL_URL and so on",
    )
    parser.add_argument(
        "--only",
        type=lambda names: names.split(","),
        default=[],
        metavar="PARTS",
        help="measure these parts, and keep the others' figures in the file of --json: "
        + (", ".join(parts) or "this script has none"),
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw a picture there")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.only if name not in parts]
    if unknown:
        parser.error(f"--only: {', '.join(unknown)} is not a part; it has {', '.join(parts)}")
    return options
