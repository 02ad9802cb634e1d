"""The request of one lock, from the public method to the text of an error, and the call for it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sqlalchemy import Engine
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.interfaces import ORMOption

from ..dialects import product_of
from ..errors import DeadlockDetected, DocLockError, LockFailed, LockNotAvailable, UnsavedChanges
from ..events import RequestedLock
from ..keys import DocumentKey, LockedName, document_label
from ..options import LockOptions, lock_label

NO_ARGUMENTS: Final[Mapping[str, Any]] = MappingProxyType({})

FEW_ROWS: Final = 50
"""The largest number of rows by key for which one limit of a whole statement serves."""


class LockRequest(NamedTuple):
    """One lock, as a call requests it.

    :ivar entity: the mapped class; None for a named lock, and for rows of tables.
    :ivar ident: the primary key, or the name, as the caller gave it; None for several rows.
    :ivar lock: the lock with its modifiers.
    :ivar seconds: the limit of the wait; None: the server's.
    :ivar mapper: of ``entity``.
    :ivar keys: the primary keys of the rows, if they are known in advance.
    :ivar options: loader options of the caller.
    :ivar bind_arguments: from which ``Session.get_bind()`` finds the database.
    :ivar given: the caller's other arguments, for the session's parts: ``{"version": 7}``.
    :ivar as_is: its statement is the program's own, executed unchanged, and once: flushed before
        like any other, without a savepoint, and without further statements.  The program handles
        its error.  A listener may execute it within another call, and take locks within its call.
    """

    entity: type[Any] | None
    ident: Any
    lock: LockOptions
    seconds: float | None = None
    mapper: Mapper[Any] | None = None
    keys: Sequence[tuple[Any, ...]] = ()
    options: Sequence[ORMOption] = ()
    bind_arguments: Mapping[str, Any] = NO_ARGUMENTS
    given: Mapping[str, Any] = NO_ARGUMENTS
    as_is: bool = False

    @property
    def named(self) -> bool:
        """True if it is a named lock."""
        return self.entity is None and self.ident is not None

    @property
    def by_key(self) -> bool:
        """True if its rows are found by primary key: then only a lock makes them wait."""
        return self.named or bool(self.keys)

    @property
    def few_rows(self) -> bool:
        """True if only waits take time: a few rows, found by their keys.

        Then a limit of the whole statement limits its waits.
        """
        return 1 <= len(self.keys) <= FEW_ROWS

    @property
    def document(self) -> str:
        """The document in the words of an error: ``Order 42``."""
        return document_label(self.entity, self.ident)


def given(version: Any, checkout: Any) -> Mapping[str, Any]:
    """Return the caller's other arguments, for the parts of the session."""
    if version is None and checkout is None:
        return NO_ARGUMENTS
    arguments = {"version": version, "checkout": checkout}
    return {name: value for name, value in arguments.items() if value is not None}


def add_document(
    error: DocLockError,
    entity: type[Any] | None,
    ident: Any,
    lock: LockOptions | None,
    database: str,
) -> None:
    """Prepend the document, the lock and the database to an error that names none yet."""
    if error.entity is None and error.ident is None and error.lock is None:
        label = document_label(entity, ident)
        if lock is not None:
            label += f" {lock_label(lock)}"
        error.entity, error.ident, error.lock = entity, ident, lock
        error.args = (f"{label} on {database}: {error.args[0]}",)


def database_name(session: Session, bind_arguments: Mapping[str, Any]) -> str:
    """Return the name of the database for an error."""
    bind = bind_arguments.get("bind")
    if bind is None:
        try:
            # The class's method, without the refusals of a gate.
            bind = type(session).get_bind(session, **bind_arguments)
        except Exception:  # noqa: BLE001  # a program's own may raise anything
            return "its database"
    return product_of(bind.dialect)


def reason(kind: type[DocLockError], request: LockRequest | None) -> str:
    """Return why the lock was not granted, and what to do."""
    if kind is LockNotAvailable:
        if request is not None and LockOptions.NoWait in request.lock:
            return "held by another transaction; try again later, or wait for it"
        if request is not None and request.seconds is not None:
            return f"not granted within {request.seconds:g} s; try again later, or wait longer"
        return "not granted within the server's own limit; roll back and try again later"
    if kind is DeadlockDetected:
        return "chosen as the victim of a deadlock; run the whole transaction again"
    return "changed by another transaction meanwhile; run the whole transaction again"


class LockCall:
    """The state of one call: its request, its start, and its error.

    :ivar request: for the documents that were not held when the call began.
    :ivar started: by the session's clock, which stands still while it connects.
    :ivar opens: there was no transaction before the call.
    :ivar outer: the call within which a listener made this one.
    :ivar new: its granted locks that were not held as strongly before.
    :ivar met: the translated error that the server raised.
    :ivar engine: the engine whose server refused.
    :ivar unsaved: the error of some of its rows, to be raised when the others are recorded and
        reported.
    :ivar undone_by_savepoint: a savepoint undoes the current try.
    :ivar requested: the request for listeners, if there are any.
    """

    met: BaseException | None = None
    engine: Engine | None = None
    unsaved: UnsavedChanges | None = None
    undone_by_savepoint = False

    def __init__(
        self,
        target: Any,
        request: LockRequest,
        calls: LockCalls,
        requested: RequestedLock | None,
        *,
        opens: bool,
    ) -> None:
        self.target = target  # a LockTarget, which is in a higher layer
        self.request, self.requested, self.opens = request, requested, opens
        self.outer = calls.current
        self.started = time.monotonic() - calls.connecting  # now(), without a call
        self.new: list[DocumentKey | LockedName] = []

    def refused(self, kind: type[LockFailed], database: str) -> LockFailed:
        """Return the error of this call, which the server refused by its answer."""
        request = self.request
        error = kind(reason(kind, request))
        add_document(error, request.entity, request.ident, request.lock, database)
        return error

    def before_flush(self) -> None:
        """Tell the targets of this call, and of those around it, that a listener is flushing."""
        self.target.before_flush()
        if self.outer is not None:
            self.outer.before_flush()

    def is_over(self, now: float) -> bool:
        """Return whether the call has taken as long as it may wait."""
        seconds = self.request.seconds
        return seconds is not None and now - self.started >= seconds


class LockCalls:
    """The lock calls that one session is making: none, one, or one within another.

    Until a call ends, errors of the session's connections are its errors, and granted locks are
    granted to it.
    """

    current: LockCall | None = None
    """The innermost call, from its begin to its grant or its failure."""
    connecting = 0.0
    """Seconds spent on connecting and on the pool, which are no wait for a lock."""
    before_refresh: AbstractSet[Any] | None = None
    """The pending changes before ``refresh(with_for_update=...)``, which expires its object first."""

    def now(self) -> float:
        """Return the time by a clock that stands still while the session connects."""
        return time.monotonic() - self.connecting
