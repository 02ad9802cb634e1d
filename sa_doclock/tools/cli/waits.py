"""``sa-doclock waits``: the connections of a server that wait for locks, and the holders."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Annotated, Literal, Optional

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from ...wait_info import LockWait
from ..monitoring import lock_waits
from .console import ServerUrl, errors_as_text, results, say
from .database import open_database
from .wait_tree import picture_of

_UNWRAPPED = 10_000  # a file or a pipe gets each connection and statement on one line
Show = Callable[[Sequence[LockWait]], None]


def waits(
    url: ServerUrl,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")] = False,
    every: Annotated[
        float, typer.Option(min=0.2, metavar="SECONDS", help="Pause between repetitions.")
    ] = 2.0,
    longer_than: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Leave out shorter waits.")
    ] = 0.0,
    alarm: Annotated[
        Optional[float],  # noqa: UP045  # as Url
        typer.Option(
            min=0, metavar="SECONDS", help="Exit status 1 if a wait is longer.", show_default="none"
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Show every connection, even beyond the screen.")
    ] = False,
    json_wanted: Annotated[
        bool,
        typer.Option(
            "--json", help="Print a list of objects; with --watch, one list on each line."
        ),
    ] = False,
) -> None:
    """Show who waits for whom on the whole server.

    A sentence says how many connections wait, and for whom. In the tree, waiters are below
    their holder. Each connection appears once; those that do not fit on the screen are counted.

    The command uses its own connection, takes no lock and changes nothing.

    Exit status: 0; 1 if a wait is longer than --alarm, which also ends --watch; 2 if the
    server cannot be asked.
    """
    with errors_as_text(database_error=2), open_database(url, 1) as target:
        alarmed = False
        with _output(json_wanted, watch, everything) as show, suppress(KeyboardInterrupt):
            while True:
                found = lock_waits(target.engine)
                # A wait of unknown duration raises no alarm.
                alarmed = alarm is not None and any((wait.seconds or 0) > alarm for wait in found)
                show(
                    [wait for wait in found if wait.seconds is None or wait.seconds >= longer_than]
                )
                if alarmed or not watch:
                    break
                time.sleep(every)
        if alarmed:
            raise typer.Exit(1)


@contextmanager
def _output(json_wanted: bool, watch: bool, everything: bool) -> Iterator[Show]:
    """Yield a function that shows the waits; on a terminal, --watch updates them in place."""
    out = results()
    if json_wanted:
        indent = None if watch else 2
        yield lambda found: say(json.dumps([asdict(wait) for wait in found], indent=indent))
    elif watch and out.is_terminal:
        overflow: Literal["visible", "crop"] = "visible" if everything else "crop"
        with Live(console=out, auto_refresh=False, vertical_overflow=overflow) as live:
            yield lambda found: live.update(_report(found, out, everything), refresh=True)
    else:
        if not out.is_terminal:
            out.width = _UNWRAPPED
        yield lambda found: out.print(_report(found, out, everything))


def _report(found: Sequence[LockWait], out: Console, everything: bool) -> RenderableType:
    if not found:
        return "no connection waits for a lock"
    return picture_of(found, out, everything=everything)
