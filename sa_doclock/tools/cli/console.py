"""Arguments of several commands, their output, and their errors as sentences."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Annotated, Any, Optional

import typer
from rich import progress
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ... import LockNotSupported
from ...keys import printable
from .database import BadUsage, DatabaseTarget
from .workload import TABLE_NAMES, TableError, TableLeftBehind, first_line, left_by_others


def import_name(words: str) -> Any:
    """Return the object of this name; also looks for modules in the working directory.

    :raises BadUsage: the module, or the name in it, does not exist.
    """
    module, colon, name = words.partition(":")
    if not (module and colon and name) or module.startswith("."):
        raise BadUsage(f"{words!r} is not package.module:Name")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # the program's own code
        raise BadUsage(f"{module} cannot be imported: {_reason(error)}") from None
    try:
        return reduce(getattr, name.split("."), found)
    except AttributeError:
        raise BadUsage(f"there is no {name} in {module}") from None


def _reason(error: BaseException) -> str:
    """Return the message of a failed import, and the line of the program."""
    if isinstance(error, (ImportError, SyntaxError)):  # its message has the location, or needs none
        return first_line(error)
    frames = traceback.extract_tb(error.__traceback__)
    line = next(
        f"{frame.filename}:{frame.lineno}" for frame in reversed(frames) if frame.filename[0] != "<"
    )
    return f"{type(error).__name__} at {line}: {first_line(error)}"


_VARIABLE = "SA_DOCLOCK_URL"

Url = Annotated[
    Optional[str],  # noqa: UP045  # typer knows "str | None" since 0.12.4 only
    typer.Option(
        metavar="URL",
        help="The database.",
        envvar=_VARIABLE,
        show_default="a temporary SQLite file",
    ),
]

ServerUrl = Annotated[
    str, typer.Option("--url", metavar="URL", help="The database.", envvar=_VARIABLE)
]

Entity = Annotated[
    str, typer.Argument(metavar="MODULE:CLASS", help="A mapped class, shop.models:Order.")
]
JsonList = Annotated[bool, typer.Option("--json", help="Print a list of objects.")]

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it."""


class _Screen(Console):
    """A console that prints each text unchanged, whatever its source.

    It reads no markup and no emoji codes: styles need a ``rich.text.Text``.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the parts of a text, without characters that control the terminal."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(_in_lines(part.text), part.style)


def results() -> Console:
    """Return the console for tables and the result.

    Our texts are ASCII: an old Windows console, or a pipe, cannot show everything that rich can.
    """
    return _Screen()


def say(text: str, *, err: bool = False) -> None:
    """Print plain text, without characters that control the terminal."""
    typer.echo(_in_lines(text), err=err)


def _in_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def announce(out: Console, target: DatabaseTarget) -> None:
    """Print the database, and the tables that will be created in it."""
    out.print(f"{target.product} {target.version}, {target.url}", soft_wrap=True)
    out.print(f"creates and drops {', '.join(TABLE_NAMES)}", soft_wrap=True)
    if others := left_by_others(target.engine):
        names = ", ".join(map(printable, others))
        out.print(f"left alone: {names}, of a run that goes on or was killed", soft_wrap=True)


@contextmanager
def progress_bar(label: str, total: float) -> Iterator[Callable[[float, str], None]]:
    """Show a bar on stderr if that is a terminal; the block calls ``(done, note)``."""
    console = _Screen(stderr=True)
    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=20),
        progress.TaskProgressColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.fields[note]}", markup=False),
    )
    with progress.Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(label, total=total, note="")
        yield lambda done, note: bar.update(task, completed=done, note=note)


@contextmanager
def errors_as_text(*, database_error: int = 1) -> Iterator[None]:
    """End the command with a sentence instead of a traceback.

    :param database_error: the exit status for an error of the database.
    """
    try:
        yield
    except (DBAPIError, TableLeftBehind) as error:
        raise _end(first_line(error), database_error) from None
    except (BadUsage, LockNotSupported, SQLAlchemyError, TableError) as error:
        raise _end(first_line(error), 2) from None
    except KeyboardInterrupt:
        raise _end("interrupted", INTERRUPTED) from None
    except AssertionError as error:
        # SQLAlchemy's commit() asserts that it ended, even if Ctrl-C came at its beginning.
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        raise _end("interrupted", INTERRUPTED) from None


def _end(text: str, status: int) -> typer.Exit:
    say(f"sa-doclock: {text}", err=True)
    return typer.Exit(status)
