"""Rows that the account may read and not lock, told apart from rows that are not there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Mapper, Session

from ...errors import LockNotSupported
from ...keys import Identity, key_text, public_key
from ...options import is_row_lock
from ..documents import key_columns
from ..statements import chunks, key_in
from ..transaction import LockPlan, TransactionConnection
from .acquire import Found


def why_hidden(connection: TransactionConnection, plan: LockPlan) -> str | None:
    """Return why the database may hide a row that can be read from a lock; None: it hides none."""
    if plan.table is None or not is_row_lock(connection.row_lock(plan)):
        return None
    return plan.strategy.hides_rows(connection.connection, plan.table)


def find_again(
    session: Session,
    connection: TransactionConnection,
    plan: LockPlan,
    mapper: Mapper[Any],
    missing: Sequence[Identity],
    lock_again: Callable[[], Found],
) -> Found | None:
    """Return the rows that a lock finds now for these keys, after it found none; None: still none.

    :param lock_again: locks the rows once more.
    :raises LockNotSupported: one of them can be read, and cannot be locked.
    """
    why = why_hidden(connection, plan) if missing else None
    if why is None:
        return None
    columns = key_columns(mapper.class_)
    there: list[Identity] = []
    for some in chunks(missing):
        statement = select(*columns).where(key_in(columns, some))
        bind = {"bind": connection.connection}
        there += map(tuple, Session.execute(session, statement, bind_arguments=bind))
    found = lock_again() if there else None
    rows = () if found is None else found.rows
    hidden = set(there).difference(tuple(mapper.primary_key_from_instance(one)) for one in rows)
    if hidden:
        keys = ", ".join(key_text(public_key(key)) for key in sorted(hidden, key=there.index)[:3])
        raise LockNotSupported(
            f"{mapper.class_.__name__} {keys} can be read, but not locked: {why}; lock with an "
            "account that may change the row, or read it with SnapshotRead"
        )
    return found
