"""Named locks: on a key instead of a row, held to the end of the transaction on every database.

A named lock is a target of acquire() like all locks; the ledger keeps it beside the documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import UnboundExecutionError

from ..core.locking import Found, LockTarget, acquire
from ..core.session import CoreSession
from ..core.transaction import LockContext, LockPlan, LockRequest, TransactionConnection
from ..dialects import product_of
from ..dialects.base import LockStrategy
from ..errors import LockMisuse, LockNotSupported
from ..keys import is_storable, key_text
from ..options import LockOptions, LockTimeout

KeyPart = str | int | UUID | date


def doclock_key(*parts: KeyPart) -> str:
    """Return one key for :meth:`LockingSession.lock_key`: ``doclock_key("user", 42)`` is ``"user:42"``.

    Different parts give different keys: ``:`` and ``%`` within a part become ``%3A`` and ``%25``.
    Parts with the same text are equal, so 42 and ``"42"``, as in a URL, give one key.

    Example::

        session.lock_key(doclock_key("user", 42))

    :param parts: str, int, UUID or date, one or more.
    :raises TypeError: a part of another type, such as None, bool, float or datetime, whose equal
        values may have different texts.
    :raises ValueError: there is no part, or a part is empty.
    """
    if not parts:
        raise ValueError('doclock_key() needs at least one part, such as doclock_key("user", 42)')
    return check_key(":".join(map(_written, parts)))


def _written(part: object) -> str:
    if isinstance(part, str):
        if not part:
            raise ValueError("a part of a key must not be empty")
        return str.__str__(part).replace("%", "%25").replace(":", "%3A")
    if isinstance(part, int) and not isinstance(part, bool):
        return int.__repr__(part)
    if isinstance(part, UUID):
        return str(part)
    if isinstance(part, date) and not isinstance(part, datetime):
        return part.isoformat()
    raise TypeError(
        f"a part of a key must be a str, an int, a UUID or a date, not {key_text(part)}"
    )


def check_key(key: str) -> str:
    """Return the key if every database can take it."""
    if not isinstance(key, str):
        raise TypeError(
            f"the key of a named lock must be a str, not {key_text(key)}: "
            'doclock_key("user", 42) makes one'
        )
    if not key:
        raise ValueError("the key of a named lock must not be empty")
    if not is_storable(key):
        raise ValueError(f"the key {key_text(key)} contains a NUL or an unpaired surrogate")
    return key


class NamedLock(LockTarget[None]):
    """The name that lock_key() locks."""

    def __init__(
        self, context: LockContext, request: LockRequest, bind: Engine | Connection
    ) -> None:
        super().__init__(context, request)
        self._engine = bind.engine

    def not_held(self) -> LockRequest | None:
        key = self._engine, self.request.ident
        return None if self.context.ledger.covers_key(key, self.request.lock) else self.request

    def read_held(self) -> None:
        return

    def prepare(
        self, bind: Engine | Connection, strategy: LockStrategy, request: LockRequest
    ) -> tuple[TransactionConnection, LockPlan]:
        """Prepare the transaction for changes under the key, whatever its mode."""
        seconds = 0.0 if LockOptions.NoWait in request.lock else request.seconds
        request = request._replace(lock=LockOptions.ForUpdate, seconds=seconds)
        return super().prepare(bind, strategy, request)

    def send(
        self, connection: TransactionConnection, plan: LockPlan, request: LockRequest
    ) -> Found:
        named_locks = plan.strategy.named_locks
        if named_locks is None:
            name = plan.strategy.name
            raise LockNotSupported(f"the lock dialect for {name} has no named locks")
        key, lock, seconds = request.ident, request.lock, request.seconds
        return Found(named_locks.take(connection.connection, key, lock, seconds))

    def record(self, found: Found, request: LockRequest) -> None:
        call, refused = self.context.calls.current, found.rows
        assert call is not None
        if refused is not None:
            raise call.refused(refused, product_of(self._engine.dialect))
        self.context.ledger.record_key((self._engine, request.ident), request.lock)


class NamedLockMethods(CoreSession):
    """A Session with the method that locks a name."""

    def lock_key(
        self,
        key: str,
        *,
        lock_timeout: LockTimeout = None,
        shared: bool = False,
        bind_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Lock a name instead of a row: no other transaction gets this key until this one ends.

        Later reads are not older than the lock; objects that the session loaded before stay as they
        are, so take the key first.  If the session holds the key already, nothing is sent.  Pending
        changes are not flushed first.  On SQLite it is the write lock on the whole file.
        docs/named-locks.md describes each database.

        Other errors, and the state after a failure: see :meth:`get_entity`.

        Example::

            session.lock_key("import:customers", lock_timeout=10)

        :param key: any non-empty text, such as the result of :func:`doclock_key`.  Programs that
            use the same database and the same key exclude each other.
        :param lock_timeout: as for :meth:`get_entity`.
        :param shared: allow other shared holders.  Still exclusive on MySQL, MariaDB and SQLite,
            which have no shared named lock.
        :param bind_arguments: as for ``Session.execute()``, in a session with several databases.
        :raises LockMisuse: the session has several databases, and the call names none.
        :raises TypeError: the key is not a str, or ``shared`` is not a bool.
        :raises ValueError: the key is empty, or contains a NUL.
        """
        context = self._context
        if not isinstance(shared, bool):
            raise TypeError(f"shared must be True or False, not {shared!r}")
        lock = LockOptions.SharedRead if shared else LockOptions.ForUpdate
        lock, seconds = context.options.resolve(lock, lock_timeout)
        check_key(key)
        arguments = dict(bind_arguments or {})
        context.transaction.refuse()
        request = LockRequest(None, key, lock, seconds, bind_arguments=arguments)
        for route in context.parts.route:
            request = route(request)
        try:
            bind = self.get_bind(**request.bind_arguments)
        except UnboundExecutionError as error:
            raise LockMisuse(
                "lock_key() cannot tell which database of the session to use: name a mapped class, "
                'lock_key(.., bind_arguments={"mapper": Order})'
            ) from error
        request = request._replace(bind_arguments={"bind": bind})
        if not self.is_active:
            self.connection(bind_arguments={"bind": bind})  # raises, as after a failed flush
        acquire(NamedLock(context, request, bind))
