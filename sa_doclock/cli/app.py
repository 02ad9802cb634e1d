"""The commands and what they have in common."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from .demo import demo
from .stress import stress

app = typer.Typer(
    name="sa-doclock",
    help="See document locks at work, on SQLite or on a database of yours.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain text: lines are wrapped, and nothing but ASCII
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(stress)


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"sa-doclock {version('sa-doclock')}")
        except PackageNotFoundError:
            typer.echo("sa-doclock, not installed: run from its source")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass
