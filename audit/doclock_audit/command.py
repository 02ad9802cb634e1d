"""``sa-doclock audit``: a Python program under audit(), with its findings at the end."""

from __future__ import annotations

import re
import runpy
import shutil
import signal
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib import metadata
from pathlib import Path
from threading import Event, Thread
from typing import Annotated, Final, Optional, TextIO

import typer

from sa_doclock.testing.instruments import printable

from .paths import check_writable
from .watching import Audit

_PYTHONS: Final = ("python", "python3")
_ERRORS_FOUND: Final = 2
_UNUSABLE: Final = 2
_BY_SIGNAL: Final = 128  # a shell reports a signal as 128 plus its number
_ON_TERMINAL, _ELSEWHERE = 5.0, 60.0  # seconds between lines of progress


def audit(
    program: Annotated[
        list[str],
        typer.Argument(
            metavar="PROGRAM [ARGS]...",
            help="A script, -m MODULE, or the name of an installed command such as pytest; put -- before it.",
        ),
    ],
    json_wanted: Annotated[
        bool,
        typer.Option(
            "--json", help="Print a list of objects; the program's output goes to stderr."
        ),
    ] = False,
    sarif: Annotated[
        Optional[Path],  # noqa: UP045  # as Url
        typer.Option(
            metavar="FILE",
            help="Write the report as SARIF 2.1.0 to this file.",
            show_default="none",
        ),
    ] = None,
    html: Annotated[
        Optional[Path],  # noqa: UP045  # as Url
        typer.Option(
            metavar="FILE", help="Write the report as HTML to this file.", show_default="none"
        ),
    ] = None,
    package: Annotated[
        Optional[list[str]],  # noqa: UP045  # as Url
        typer.Option(
            metavar="NAME",
            help="An installed package that belongs to the program; can be repeated.",
            show_default="packages whose source is here",
        ),
    ] = None,
) -> None:
    """Run a program, and find where it lacks a lock.

    The program runs in this process; the audit does not watch other processes that it starts.  Ctrl-C and
    SIGTERM end the program, and the report follows.

    Exit status: the program's; if that is 0, then 2 if the audit found errors.
    """
    if json_wanted and sarif is not None:
        raise typer.BadParameter("--json and --sarif FILE exclude each other")
    files = {file: form for file, form in ((sarif, Audit.to_sarif), (html, Audit.to_html)) if file}
    for file in files:
        check_writable(file, _end)
    run = _runner_of(program)
    folder, packages = Path.cwd(), [*(package or ()), *_package_of(program)]
    found = Audit(packages=packages, tests_alone=True)
    with found.watching(), progress_lines(found, sys.stderr):
        status = _status_of(run, quiet=json_wanted)
    _say(found.to_json() if json_wanted else found.report())
    written = [_write(folder, file, form(found)) for file, form in files.items()]
    errors = any(one.severity == "error" for one in found.findings)
    raise typer.Exit(status or max(written, default=0) or (_ERRORS_FOUND if errors else 0))


def _end(text: str) -> typer.Exit:
    _say(f"sa-doclock: {text}", err=True)
    return typer.Exit(_UNUSABLE)


def _say(text: str, *, err: bool = False) -> None:
    typer.echo("\n".join(map(printable, text.split("\n"))), err=err)


def _write(folder: Path, file: Path, text: str) -> int:
    """Write a report and name its file on standard error; return 1 on failure.

    :param folder: the working directory before the program ran; the program may have changed it.
    """
    try:
        (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        typer.echo(f"sa-doclock: {file} cannot be written: {error.strerror}", err=True)
        return 1
    typer.echo(f"written to {file}", err=True)
    return 0


@contextmanager
def progress_lines(found: Audit, stream: TextIO, seconds: float | None = None) -> Iterator[None]:
    """While the block runs, write a line of progress at intervals.

    :param stream: must not be the stream of the program's output.
    :param seconds: between lines; by default 5 on a terminal and 60 elsewhere.
    """
    pause = seconds or (_ON_TERMINAL if stream.isatty() else _ELSEWHERE)
    began, ended = time.monotonic(), Event()

    def write() -> None:
        while not ended.wait(pause):
            ran = time.monotonic() - began
            counts = f"{found.statements} statements, {found.transactions} transactions"
            stream.write(f"sa-doclock audit: {ran:.0f} s, {counts}\n")
            stream.flush()

    thread = Thread(target=write, name="sa_doclock audit", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _runner_of(program: Sequence[str]) -> Callable[[], object]:
    """Return a function that runs the program as ``python`` would.

    Exit if the program does not exist, or is not a Python program.
    """
    name, *arguments = program
    if name in _PYTHONS and arguments:
        name, *arguments = arguments
    if name == "-m" and arguments:
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = list(arguments)
        return partial(runpy.run_module, arguments[0], run_name="__main__", alter_sys=True)
    path = _script_of(name)
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path), *arguments]
    return partial(runpy.run_path, str(path), run_name="__main__")


def _package_of(program: Sequence[str]) -> Iterator[str]:
    """Yield the package of a module or an installed command, if it uses SQLAlchemy."""
    name, *arguments = program[1:] if program[0] in _PYTHONS and program[1:] else program
    if name == "-m" and arguments:
        module = arguments[0]
    else:
        commands = metadata.entry_points(group="console_scripts", name=name)
        module = next((one.module for one in commands), "")
    package = module.partition(".")[0]
    for distribution in metadata.packages_distributions().get(package, ()):
        if any(map(_NEEDS_SQLALCHEMY.match, metadata.requires(distribution) or ())):
            yield package
            return


_NEEDS_SQLALCHEMY: Final = re.compile(r"sqlalchemy\b(?!.*\bextra\b)", re.IGNORECASE)


def _script_of(name: str) -> Path:
    path = Path(name).absolute()  # as python does
    if path.is_file():
        return path
    # Find a command of this environment, active or not: another environment's modules cannot be imported here.
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if found is None:
        raise _end(f"there is no program {name!r}")
    with Path(found).open("rb") as file:
        first = file.readline()
    if not first.startswith(b"#!") or b"python" not in first:
        raise _end(
            f"{found} is not a Python program; the audit can only run Python, in its own process"
        )
    return Path(found)


def _status_of(run: Callable[[], object], *, quiet: bool) -> int:
    """Run the program; return its exit status.  Print its traceback as Python does."""
    try:
        with redirect_stdout(sys.stderr if quiet else sys.stdout), _ended_by_sigterm():
            run()
    except KeyboardInterrupt:
        return _BY_SIGNAL + signal.SIGINT
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        typer.echo(end.code, err=True)  # as the program wrote it
        return 1
    except Exception:  # noqa: BLE001  # whatever the program raises
        traceback.print_exc()
        return 1
    return 0


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM raise SystemExit, as Ctrl-C raises KeyboardInterrupt, unless the program handles it."""

    def end(number: int, _: object) -> None:
        raise SystemExit(_BY_SIGNAL + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
