"""The refusal of a second session: its task or thread holds a lock in another session of a gate.

Enough of them would use up the pool, and wait for each other's connections.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final
from weakref import ref

from sqlalchemy import Connection, Engine
from sqlalchemy.pool import NullPool, Pool, SingletonThreadPool, StaticPool

from ..core.ledger import ledger_of
from ..core.transaction import LockCall, LockContext, LockRequest, SessionPart, Take, connections_of
from ..errors import LockMisuse
from ..events import ReleasedLock
from ..options import is_row_lock


class SecondSession(SessionPart):
    """One session, as the others of its task see it.

    :param gate: only sessions of the same gate count.
    :ivar pools: of its connections while it holds a row lock on ``document``, taken in the task or
        thread ``where``.
    """

    def __init__(self, state: LockContext, gate: object) -> None:
        self._session, self.gate = state.session, gate
        self.pools: frozenset[Pool] = frozenset()
        self.document, self.where = "", object()

    def around_take(self, take: Take) -> Take:
        """See :class:`SessionPart`."""

        def take_and_note(call: LockCall, request: LockRequest, target: Any) -> Any:
            result = take(call, request, target)
            if is_row_lock(request.lock) and ledger_of(self._session()).places:
                self._hold(request.document)
            return result

        return take_and_note

    def _hold(self, document: str) -> None:
        """Tell the other sessions of this task or thread that this one holds a lock."""
        if not self.pools:
            self.document = document
        self.pools = frozenset(c.engine.pool for c in connections_of(self._session()).all())
        self.where, known = _where(), _here.get()
        if ref(self) not in known:
            # A new tuple: contexts that were copied before do not see it.
            _here.set(
                (
                    *(reference for reference in known if (other := reference()) and other.pools),
                    ref(self),
                )
            )

    def released(self, released: Sequence[ReleasedLock], outcome: str) -> None:
        """See :class:`SessionPart`."""
        if not ledger_of(self._session()).places:
            self.pools = frozenset()

    def ended(self, *, committed: bool) -> None:
        """See :class:`SessionPart`."""
        self.pools = frozenset()  # also after an earlier interruption

    def around_get_bind(self, get_bind: Callable[..., Any]) -> Callable[..., Any]:
        """See :class:`SessionPart`."""

        def checked_bind(*args: Any, **kwargs: Any) -> Any:
            bind = get_bind(*args, **kwargs)
            self._refuse_second_session(bind)
            return bind

        return checked_bind

    def _others(self) -> Iterator[SecondSession]:
        for other in [reference() for reference in _here.get()]:
            if other not in (None, self) and other.gate is self.gate and other.where == _where():
                yield other

    def _refuse_second_session(self, bind: Engine | Connection) -> None:
        """:raises LockMisuse: another session of this task holds a lock and a connection."""
        if isinstance(bind, Connection):
            return
        for other in self._others():
            if (
                bind.pool in other.pools
                and not isinstance(bind.pool, _NEVER_EXHAUSTED)
                and not any(c.engine is bind.engine for c in connections_of(self._session()).all())
            ):
                raise LockMisuse(
                    f"this task or thread holds {other.document} in another session, and now wants "
                    "a second connection of the same pool: if every connection in the pool belongs to a "
                    "task that waits for a second one, all of them hang. Pass the first session on, end its "
                    "transaction first, or use a separate engine; "
                    'DocumentGate(second_session="allow") permits it'
                )


# StaticPool and SingletonThreadPool share one connection; NullPool creates one per checkout.  A
# QueuePool with max_overflow=-1 or pool_size=0 is unlimited too, but no public attribute says so.
_NEVER_EXHAUSTED: Final = (NullPool, SingletonThreadPool, StaticPool)

# The sessions that took locks here.  A context variable: a pool's thread, or a task started while a
# lock is held, starts with a copy and is not the holder.
_here: ContextVar[tuple[ref[SecondSession], ...]] = ContextVar("sa_doclock.here", default=())


def _where() -> object:
    with suppress(RuntimeError):  # no loop runs in this thread
        task = asyncio.current_task()
        if task is not None:
            return ref(task)
    return threading.get_ident()
