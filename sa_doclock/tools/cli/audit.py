"""``sa-doclock audit``: the command of sa-doclock-audit, or how to install it."""

from __future__ import annotations

import typer

from ...testing import import_auditor, is_installed
from .console import say

_ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def add_audit(app: typer.Typer) -> None:
    """Add the command."""
    if is_installed():
        app.command()(import_auditor("the command audit", ".command").audit)
    else:
        app.command("audit", context_settings=_ANYTHING)(_say_how_to_install)


def _say_how_to_install(_: typer.Context) -> None:
    """Run a program, and find where it lacks a lock; needs 'sa-doclock[audit]'."""
    try:
        import_auditor("the command audit")
    except ModuleNotFoundError as error:
        say(f"sa-doclock: {error}", err=True)
        raise typer.Exit(2) from None
