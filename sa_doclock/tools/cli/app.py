"""The commands and their common options."""

from __future__ import annotations

from typing import Annotated

import typer

import sa_doclock

from ...testing import import_auditor, is_installed
from .checkouts import check_in, checkouts, take_over
from .console import say
from .demo import demo
from .doctor import doctor
from .explain import explain
from .stress import stress
from .waits import waits

_ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}

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


def _say_how_to_install(_: typer.Context) -> None:
    """Run a program, and find where it lacks a lock; needs 'sa-doclock[audit]'."""
    try:
        import_auditor("the command audit")
    except ModuleNotFoundError as error:
        say(f"sa-doclock: {error}", err=True)
        raise typer.Exit(2) from None


if is_installed():
    app.command()(import_auditor("the command audit", ".command").audit)
else:
    app.command("audit", context_settings=_ANYTHING)(_say_how_to_install)


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
