"""``sa-doclock explain``: the statements, rows and waits of a lock, without taking it."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import reduce
from operator import or_
from typing import Annotated, Optional

import typer
from sqlalchemy.exc import ArgumentError

from ...options import LockOptions
from ..explain import explain_lock
from .console import Entity, ServerUrl, errors_as_text, import_name, say
from .database import BadUsage, open_database


def explain(
    entity: Entity,
    lock: Annotated[
        str, typer.Argument(metavar="LOCK", help="ForUpdate, SharedRead, 'ForUpdate|NoWait', ...")
    ],
    url: ServerUrl,
    lock_timeout: Annotated[
        Optional[float],  # noqa: UP045  # as Url
        typer.Option(metavar="SECONDS", help="As for get_entity().", show_default="none"),
    ] = None,
    json_wanted: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> None:
    """Show the statements and rows of a lock, and who then waits.

    The statements are sent without their locks, so the command blocks no one.

    Exit status: 0; 2 if the database cannot give that lock, or cannot be asked.
    """
    with errors_as_text(database_error=2), open_database(url, 1, patient=False) as target:
        mapped, wanted = import_name(entity), _lock_of(lock)
        try:
            found = explain_lock(target.engine, mapped, wanted, lock_timeout=lock_timeout)
        except (TypeError, ValueError, ArgumentError) as error:
            raise BadUsage(str(error)) from None
    text = str(found)
    if json_wanted:
        mapped = f"{found.entity.__module__}:{found.entity.__qualname__}"
        names = [option.name or "" for option in LockOptions if option & found.lock]
        own = {"entity": mapped, "lock": " | ".join(names) or "None_"}
        text = json.dumps(asdict(found) | own, indent=2)
    say(text)


def _lock_of(words: str) -> LockOptions:
    """Return the combined lock.  :raises BadUsage: a name is unknown."""
    names = [name.strip() for name in words.split("|")]
    for name in names:
        if name not in LockOptions.__members__:
            known = ", ".join(LockOptions.__members__)
            raise BadUsage(f"there is no lock {name!r}: {known}")
    return reduce(or_, (LockOptions[name] for name in names))
