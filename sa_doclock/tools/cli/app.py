"""The commands and their common options."""

from __future__ import annotations

from typing import Annotated

import typer

import sa_doclock

from .audit import add_audit
from .checkouts import check_in, checkouts, take_over
from .demo import demo
from .doctor import doctor
from .explain import explain
from .stress import stress
from .waits import waits

app = typer.Typer(
    name="sa-doclock",
    help="See document locks at work, and watch them on a database of yours.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain text: wraps lines, ASCII only
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (demo, stress, waits, doctor, explain, checkouts, take_over, check_in):
    app.command()(command)
add_audit(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sa-doclock {sa_doclock.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass
