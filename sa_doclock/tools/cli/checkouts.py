"""``sa-doclock checkouts``, ``take-over`` and ``check-in``: list, take and end check-outs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Optional

import typer
from rich.table import Table
from sqlalchemy import MetaData, inspect
from sqlalchemy import Table as DatabaseTable
from sqlalchemy.exc import NoResultFound

from ...checkout_info import Checkout
from ...core.documents import identity_of, mapper_of
from ...errors import DocLockError
from ...features.checkouts import (
    NAME,
    check_lease,
    check_note,
    check_owner,
    checkout_table,
    list_checkouts,
)
from ...keys import document_label, printable, public_key, short_text
from ...session import LockingSession
from .console import Entity, JsonList, ServerUrl, errors_as_text, import_name, results, say
from .database import BadUsage, DatabaseTarget, open_database
from .workload import first_line

_SECONDS: Final = "%Y-%m-%d %H:%M:%S"

TableName = Annotated[
    str,
    typer.Option(
        "--table", metavar="NAME", help="The table of check-outs, with its schema: sales.checkouts."
    ),
]
Ident = Annotated[
    list[str], typer.Argument(metavar="KEY", help="The primary key, one value for each column.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def checkouts(
    url: ServerUrl,
    table: TableName = NAME,
    owner: Annotated[
        Optional[str],  # noqa: UP045  # as Url
        typer.Option(metavar="OWNER", help="Only those of this owner.", show_default="all"),
    ] = None,
    json_wanted: JsonList = False,
) -> None:
    """Show who has which document checked out.

    Times are in UTC. An expired check-out is listed until somebody takes the document or checks it in.

    Exit status: 0; 2 if there is no such table, or it cannot be read.
    """
    with errors_as_text(database_error=2), open_database(url, 1, patient=False) as target:
        known = _table(target, table)
        with target.engine.connect() as connection:
            found = list_checkouts(connection, known, owner)
    if json_wanted:
        say(json.dumps([*map(dict, found)], indent=2, default=datetime.isoformat))
    else:
        _print(found)


def take_over(
    entity: Entity,
    ident: Ident,
    url: ServerUrl,
    owner: Annotated[str, typer.Option("--owner", metavar="OWNER", help="The new owner.")],
    lease: Annotated[
        float, typer.Option("--minutes", metavar="MINUTES", help="The length of the lease.")
    ] = 15.0,
    note: Annotated[
        Optional[str],  # noqa: UP045  # as Url
        typer.Option(metavar="TEXT", help="A text that others see.", show_default="none"),
    ] = None,
    table: TableName = NAME,
    yes: Yes = False,
) -> None:
    """Take a document from whoever has it.

    The owner before cannot save any more. It waits for the lock of the document. It asks before, and shows who has it.

    Exit status: 0; 1 if the answer is no; 2 if there is no such document, or it cannot be done.
    """
    with _session(url, table) as session:
        time = _lease(lease)
        check_owner(owner)
        check_note(note)
        mapped = import_name(entity)
        key = _key(mapped, ident)
        _ask(session, mapped, key, "take it over", yes=yes)
        with session.begin():
            got = session.take_over(mapped, key, owner, lease=time, note=note)
    say(f"{_label(got)}: {_holder(got)}")


def check_in(
    entity: Entity, ident: Ident, url: ServerUrl, table: TableName = NAME, yes: Yes = False
) -> None:
    """Check a document in, whoever has it.

    It is free then, and the owner cannot save any more. It asks before, and shows who has it.

    Exit status: 0, also if nobody has it; 1 if the answer is no; 2 if it cannot be done.
    """
    with _session(url, table) as session:
        mapped = import_name(entity)
        key = _key(mapped, ident)
        checkout = _ask(session, mapped, key, "check it in", yes=yes)
        if checkout is not None:
            with session.begin():
                session.check_in(checkout)
            say(f"{_label(checkout)}: checked in")


@contextmanager
def _session(url: str, table: str) -> Iterator[LockingSession]:
    """Open a session for a command that changes a check-out; its errors become sentences."""
    with errors_as_text(database_error=2), open_database(url, 2, patient=False) as target:
        known = _table(target, table)
        try:
            with LockingSession(target.engine, checkouts=known) as session:
                yield session
        except (DocLockError, NoResultFound, TypeError, ValueError) as error:
            raise BadUsage(first_line(error)) from None


def _ask(
    session: LockingSession, entity: Any, key: Any, question: str, *, yes: bool
) -> Checkout | None:
    """Show who has the document, and ask for confirmation.  :raises typer.Exit: the answer was no."""
    with session.begin():
        found = session.checkout_of(entity, key, expired=True)
    if found is None:
        say(f"{document_label(entity, key)}: nobody has it checked out")
    else:
        say(f"{_label(found)}: {_holder(found)}")
    if found is not None and not yes and not typer.confirm(f"{question}?"):
        raise typer.Exit(1)
    return found


def _table(target: DatabaseTarget, name: str) -> DatabaseTable:
    """:raises BadUsage: the database has no such table."""
    schema, _, own_name = name.rpartition(".")
    if not own_name:
        raise BadUsage(
            "--table is the name of a table, such as doclock_checkouts or sales.checkouts"
        )
    if not inspect(target.engine).has_table(own_name, schema=schema or None):
        raise BadUsage(f"there is no table {name}: give its name by --table")
    return checkout_table(MetaData(), own_name, schema or None)


def _key(entity: Any, words: Sequence[str]) -> Any:
    return public_key(identity_of(mapper_of(entity), words[0] if len(words) == 1 else tuple(words)))


def _lease(minutes: float) -> timedelta:
    """:raises BadUsage: a check-out cannot last this many minutes."""
    try:
        return check_lease(minutes * 60)
    except ValueError:
        raise BadUsage(
            f"--minutes must be at least a millisecond and at most 100 years, not {minutes:g}"
        ) from None


def _label(checkout: Checkout) -> str:
    return document_label(checkout.entity, checkout.ident)


def _holder(checkout: Checkout) -> str:
    since, until = (f"{time:{_SECONDS}}" for time in (checkout.since, checkout.until))
    note = f", {printable(checkout.note)}" if checkout.note else ""
    return f"{short_text(checkout.owner)} has it since {since}, until {until} (UTC){note}"


def _print(found: Sequence[Mapping[str, Any]]) -> None:
    if not found:
        say("nothing is checked out")
        return
    table = Table("document", "owner", "since", "until (UTC)", "epoch", "note", box=None)
    for row in found:
        until = f"{row['until']:{_SECONDS}}" + " expired" * row["expired"]
        words = (
            f"{row['table']} {row['ident']}",
            row["owner"],
            f"{row['since']:{_SECONDS}}",
            until,
            str(row["epoch"]),
            row["note"] or "",
        )
        table.add_row(*map(printable, words))
    results().print(table)
