"""Checks of check-outs: their table, and the clock that they go by."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Final

import sqlalchemy as sa

from ...core.documents import declares, own_table
from ...features.checkouts.table import COLUMNS, UtcTimestamp, checkout_table
from .check import Problem, Subject, check

_APART: Final = timedelta(seconds=30)
"""More than clocks that are set by the network differ."""


def _tables(subject: Subject) -> list[sa.Table]:
    """Return the tables of check-outs that the documents need."""
    headers = [own_table(one) for one in subject.headers if declares(one, "checkout")]
    found = [
        table
        for metadata in dict.fromkeys(header.metadata for header in headers)
        for table in metadata.tables.values()
        if set(COLUMNS) <= set(table.columns.keys())
    ]
    return found or [checkout_table(sa.MetaData())] * bool(headers)


@check("checkout-table-missing", "warning")
def checkout_table_missing(subject: Subject) -> Iterator[Problem]:
    """Documents are declared with `@document(checkout=True)`, and the database has no table of check-outs:
    every ForUpdate lock of a session with `checkouts=` fails.
    """
    for table in _tables(subject):
        if not subject.has(table):
            yield Problem(
                f"there is no table {table.fullname}, which says who has documents checked out",
                "op.create_checkout_table() in a migration; if it has another name, give "
                "checkout_table() the metadata of the documents",
            )


@check("clocks-apart", "warning")
def clocks_apart(subject: Subject) -> Iterator[Problem]:
    """The clock of the database differs from that of this machine by more than 30 seconds. Check-outs go
    by the database's clock alone, and are right by it. A page that shows "until 10:17" shows times that
    the clock on the wall does not; and after a failover to a machine with another clock, check-outs end
    early or late.
    """
    clock = subject.strategy.clock
    if clock is None or not _tables(subject):
        return
    before = client_time()
    expression = sa.literal_column(clock.now, UtcTimestamp())
    there = subject.connection.execute(sa.select(expression)).scalar_one()
    ahead, behind = there - client_time(), before - there
    apart = max(ahead, behind)
    if apart > _APART:
        which = "ahead of" if ahead > behind else "behind"
        yield Problem(
            f"the clock of the database is {apart.total_seconds():.0f} s {which} that of this machine",
            "set the clocks of all machines by NTP",
        )


def client_time() -> datetime:
    """Return the time by the clock of this machine."""
    return datetime.now(timezone.utc)
