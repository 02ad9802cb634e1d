"""Adoption: the part by which the ``with_for_update()`` of a session's statements are locks."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import Connection, Select
from sqlalchemy.engine import Compiled
from sqlalchemy.orm import Session

from ...core.transaction import (
    Executor,
    LockContext,
    SessionPart,
    StatementCheck,
    check_statements,
    state_of,
)
from .adopted_rows import AdoptedRows, execute_for_update
from .check_compiled import check_locks
from .compiled_locks import NO_LOCKS, CompiledLocks, locks_in
from .for_update import inner_select, lock_of_for_update


class Adoption(SessionPart):
    """The part of a session whose ``with_for_update()`` are locks; it keeps nothing of it."""

    def executor(self, session: Session, statement: Any) -> Executor | None:
        """See :class:`SessionPart`: a select that has a ``with_for_update()`` is executed here."""
        select = inner_select(statement)
        lock = lock_of_for_update(select) if isinstance(select, Select) else None
        if lock is None:
            return None
        context = state_of(session)
        assert context is not None  # no other session has parts
        return partial(execute_for_update, context, statement, lock)


def _check_of(compiled: Compiled) -> StatementCheck | None:
    """Return the check of the locks in this statement; None where there are none."""
    locks = locks_in(compiled)
    if locks is NO_LOCKS:
        return None
    return StatementCheck(partial(_check, locks), in_calls=bool(locks.within))


def _check(locks: CompiledLocks, state: LockContext, connection: Connection) -> None:
    if state.parts.find(Adoption) is not None:
        check_locks(state, connection, locks)
        call = state.calls.current
        if locks.reads_more and call is not None and isinstance(call.target, AdoptedRows):
            call.target.reads_more = True


check_statements(_check_of)
