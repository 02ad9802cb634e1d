"""Rows locked by their keys, whose conditions are checked again under the lock."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from sqlalchemy import Select, inspect

from ..core.documents import document_key, root_of
from ..core.lock_info import Identity
from ..core.locking import LockedRows, acquire, objects_of, single_key, why_hidden
from ..core.session import context_of
from ..core.statements import Send, lock_by_keys, parameters_by_keys
from ..core.transaction import LockPlan, LockRequest, TransactionConnection
from ..errors import LockNotAvailable
from ..options import LockOptions
from ..session import LockingSession
from .query import ClaimQuery

QUEUE: Final = LockOptions.ForUpdate
SKIP: Final = LockOptions.ForUpdate | LockOptions.SkipLocked


def lock_matching(
    session: LockingSession,
    query: ClaimQuery,
    identities: Sequence[Identity],
    lock: LockOptions,
    seconds: float | None,
) -> dict[Identity, Any]:
    """Lock those of these rows that match the statement; in a transaction of their own.

    One statement does both where the statement reads the header's own row alone. Otherwise
    the rows are locked first, in the order of their keys, and read in a second statement: one
    that locks and reads shows the other rows as they were when it began, which may be before
    another worker has committed.

    :raises LockFailed: with ``SkipLocked`` only for a deadlock and the like.
    """
    context, mapper = context_of(session), query.mapper
    lock, seconds = context.options.resolve(lock, seconds)  # the session's own, if it queues
    request = LockRequest(
        mapper.class_,
        single_key(identities),
        lock,
        seconds,
        mapper,
        identities,
        bind_arguments={"mapper": mapper},
    )
    target = _MatchingRows(context, request, query)
    found = acquire(target)
    if target.hides_rows:
        _refuse_hidden(session, query, [key for key in identities if key not in found])
    return found


def _refuse_hidden(session: LockingSession, query: ClaimQuery, missing: Sequence[Identity]) -> None:
    """Ask for the lock of each of these rows that match; a savepoint gives it up again.

    :raises LockNotSupported: one of them can be read, and cannot be locked.
    """
    matching = session.execute(query.matching(missing))
    for key in [query.split(row)[0] for row in matching]:
        with suppress(LockNotAvailable), session.begin_nested() as savepoint:
            session.get_entity(query.mapper.class_, key, QUEUE | LockOptions.NoWait)
            savepoint.rollback()


class _MatchingRows(LockedRows[dict[Identity, Any]]):
    """The rows that match, by their keys, in a session that has loaded nothing yet."""

    hides_rows = False
    """Rows were not found that can perhaps be read."""

    def __init__(self, context: Any, request: LockRequest, query: ClaimQuery) -> None:
        super().__init__(context, request)
        self._query = query

    def send(
        self, connection: TransactionConnection, plan: LockPlan, request: LockRequest
    ) -> Sequence[Any]:
        self._keys = request.keys
        found: Sequence[Any] = self.send_select(connection, plan, request)
        if len(found) < len(request.keys):
            self.hides_rows = why_hidden(connection, plan) is not None
        return found

    def in_one_statement(self, plan: LockPlan, *, whole_row: bool) -> bool:
        query = self._query
        return query.in_one_statement and not (whole_row and query.has_options)

    def locking(self, lock: LockOptions, *, whole_row: bool) -> Select[Any]:
        return self._query.locking(self._keys, lock, whole_row=whole_row)

    def under_lock(self, lock: LockOptions) -> Select[Any]:
        return self._query.again(self._keys)

    def read(self, statement: Select[Any]) -> Sequence[Any]:
        parameters = self._query.parameters(self._keys)
        return objects_of(self.session, statement, parameters, (), self.binds)

    def lock_and_read(self, send: Send) -> Sequence[Any]:
        root = root_of(self.mapper)
        locking = partial(lock_by_keys, root, keys=self._keys, whole_row=send.whole_row)
        self._keys = self.lock_keys(send, locking, parameters_by_keys(self._keys))
        return self.read(self._query.again(self._keys)) if self._keys else ()

    def record(self, found: Sequence[Any], request: LockRequest) -> dict[Identity, Any]:
        rows = {tuple(inspect(row).identity): row for row in found}
        for identity in rows:
            document = document_key(self._query.mapper, identity)
            self.context.ledger.record(document, request.lock)
        return rows
