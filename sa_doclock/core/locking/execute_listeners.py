"""do_orm_execute listeners of the program, which may change a statement that locks, or answer it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Select, event
from sqlalchemy.orm import LoaderCriteriaOption, ORMExecuteState, Session

from ...errors import LockMisuse, LockNotSupported
from ..documents import spans_rows
from ..sqlalchemy_internals import for_update_clause, options_of, undefers, with_options
from ..statements import refuse_unlockable_options


@contextmanager
def checked_listeners(session: Session, *, row_lock: bool) -> Iterator[None]:
    """Check what the listeners of this session make of the statements of this block.

    :param row_lock: one of the statements must carry the lock; else it is the transaction's.
    :raises LockNotSupported: one has added an option that reads details by a locking statement.
    :raises LockMisuse: none of the statements, or none with the lock, was sent.
    """
    sent: list[Select] = []  # type: ignore[type-arg]  # see statements/with_lock.py

    def check(state: ORMExecuteState) -> None:
        statement = state.statement
        later = state.is_column_load or state.is_relationship_load
        if later or not isinstance(statement, Select):
            return
        locks, entities = for_update_clause(statement) is not None, _entities_of(statement)
        if locks or not entities:
            state.statement = _checked(statement, entities)
        if locks or not row_lock:
            sent.append(statement)

    event.listen(session, "do_orm_execute", check)  # after all others
    try:
        yield
    finally:
        event.remove(session, "do_orm_execute", check)
    if not sent:
        raise LockMisuse(
            "a do_orm_execute listener has answered the statement that locks, or has replaced it "
            "by one without the lock; let it leave statements with a with_for_update() alone"
        )


def _entities_of(statement: Select) -> list[Any]:  # type: ignore[type-arg]
    """Return the entities that the statement reads whole."""
    read = statement.column_descriptions
    return [one["expr"] for one in read if one["expr"] is one.get("entity")]


def _checked(statement: Select, entities: Sequence[Any]) -> Select:  # type: ignore[type-arg]
    options = options_of(statement)
    try:
        refuse_unlockable_options(options)
    except LockNotSupported as error:
        raise LockNotSupported(f"a do_orm_execute listener has added {error}") from None
    if not entities:
        # It finds or locks the rows, and SQLAlchemy refuses options of attributes in it.  Another
        # one reads the rows, which the listener sees too.
        return with_options(statement, [o for o in options if isinstance(o, LoaderCriteriaOption)])
    if undefers(options) and any(spans_rows(one, undeferred=True) for one in entities):
        raise LockNotSupported(
            "a do_orm_execute listener has added an option by which the locking statement itself "
            "reads a subquery, as of before the lock was granted; give it as options= of the call"
        )
    return statement
