"""do_orm_execute listeners of the program, which may change or answer a locking statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Result, Select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import LoaderCriteriaOption, ORMExecuteState

from ...errors import LockMisuse, LockNotAvailable, LockNotSupported
from ...sqlalchemy_internals import (
    for_update_clause,
    listening_last,
    options_of,
    undefers,
    with_options,
)
from ..documents import spans_rows
from ..statements import refuse_unlockable_options
from ..transaction import LockContext


@contextmanager
def checked_listeners(
    context: LockContext, expire: Callable[[], None], *, row_lock: bool
) -> Iterator[None]:
    """Check the statements of this block after the session's listeners.

    :param expire: expires the documents again; listeners may have read them before the lock.
    :param row_lock: one of the statements must contain the lock; otherwise the transaction has it.
    :raises LockNotSupported: a listener added an option that reads details by a locking statement.
    :raises LockMisuse: none of the statements, or none with the lock, was sent.
    """
    listener = _Listener(context, expire, row_lock=row_lock)
    with listening_last(context.session(), listener.check):
        yield
    if not listener.sent:
        raise LockMisuse(
            "a do_orm_execute listener answered the locking statement, or replaced it by one "
            "without the lock: do not change statements with a with_for_update() there"
        )


class _Listener:
    """Listens to the statements of one lock call.

    :ivar sent: a locking statement was sent.
    """

    def __init__(self, context: LockContext, expire: Callable[[], None], *, row_lock: bool) -> None:
        self._calls, self._call = context.calls, context.calls.current
        self._expire, self._row_lock = expire, row_lock
        self.sent = False

    def check(self, state: ORMExecuteState) -> Result[Any] | None:
        """Check a statement after the program's listeners have changed it."""
        if self._calls.current is not self._call:
            return None  # of an inner call, or this was not removed because of an interruption
        statement = state.statement
        loads = state.is_column_load or state.is_relationship_load
        if loads or not isinstance(statement, Select):
            return None
        locks, entities = for_update_clause(statement) is not None, _entities_of(statement)
        if locks or not entities:
            state.statement = _checked(statement, entities)
        if locks:
            self._expire()
        return self._execute(state) if locks or not self._row_lock else None

    def _execute(self, state: ORMExecuteState) -> Result[Any]:
        """Execute a locking statement.  Its error fails the call even if a listener swallows it."""
        try:
            result = state.invoke_statement()
        except DBAPIError as error:
            self.sent = True
            if self._call is not None:
                self._call.met = error
            raise
        self.sent = True
        if self._call is not None and isinstance(self._call.met, LockNotAvailable):
            self._call.met = None  # the listener tried again, and got the lock
        return result


def _entities_of(statement: Select) -> list[Any]:  # type: ignore[type-arg]
    read = statement.column_descriptions
    return [column["expr"] for column in read if column["expr"] is column.get("entity")]


def _checked(statement: Select, entities: Sequence[Any]) -> Select:  # type: ignore[type-arg]
    options = options_of(statement)
    try:
        refuse_unlockable_options(options)
    except LockNotSupported as error:
        raise LockNotSupported(f"a do_orm_execute listener has added {error}") from None
    if not entities:
        # This statement finds or locks the rows, and SQLAlchemy refuses attribute options in it.  A
        # later one reads the rows; the listener sees it too.
        return with_options(statement, [o for o in options if isinstance(o, LoaderCriteriaOption)])
    if undefers(options) and any(spans_rows(entity, undeferred=True) for entity in entities):
        raise LockNotSupported(
            "a do_orm_execute listener has added an option that makes the locking statement read "
            "a subquery, whose rows are older than the lock; pass the option as options= of the "
            "call"
        )
    return statement
