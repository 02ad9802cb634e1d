"""The writes of a last flush travel with COMMIT, in one round trip.

The server runs nothing after a statement that fails, so COMMIT is safe behind them.  A count of
rows is no failure to it, and would be known only when all is committed; so an UPDATE is sent in a
form that fails when it does not find its row.  What is not sure to be right without an answer is
not kept waiting: it is sent after those that wait, and answered as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn
from uuid import UUID
from weakref import ref

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.orm.exc import StaleDataError

from ...pool import CallFunction, on_return, withdraw
from .pipeline import Call, Cursor, CursorInterceptor, Steps, together, wait_for

# width_bucket() has an error of its own, which nothing else raises, for a number of buckets that
# is not positive: 2201G, invalid_argument_for_width_bucket_function.
_NOT_ONE: Final = "2201G"
_ONE: Final = (
    "WITH doclock AS ({}\nRETURNING 1) "
    "SELECT width_bucket(1, 0, 1, (count(*) = 1)::int) FROM doclock"
)

# What nobody can change between the flush and COMMIT: the driver reads it only then.
_FIXED: Final = frozenset(
    {bool, bytes, date, datetime, Decimal, float, int, str, time, timedelta, type(None), UUID}
)


class Write(NamedTuple):
    """One statement of a flush."""

    statement: str
    parameters: Any
    many: bool
    updated: str | None
    """The table of an UPDATE, each of whose rows must be there."""

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The parameters of each row."""
        return self.parameters if self.many else (self.parameters,)

    @property
    def sent(self) -> str:
        """The text that fails where SQLAlchemy would, on the count of rows."""
        return self.statement if self.updated is None else _ONE.format(self.statement)


class DeferredWrites(CursorInterceptor):
    """The writes of a transaction that is about to be committed.

    :param may_commit: asked when COMMIT is due: whether it may travel along, or else only what it
        commits.  May raise.
    """

    def __init__(self, connection: Connection, may_commit: Callable[[], bool]) -> None:
        super().__init__(connection)
        self._may_commit = may_commit
        self._waiting: list[Write] = []
        self._next: Write | None = None
        self._failure: Exception | None = None
        self._active = False
        self.paused = False
        # The connection is the session's own, and goes with its transaction.
        event.listen(connection, "before_cursor_execute", self._look_at)
        event.listen(connection, "commit", self._commit)
        event.listen(connection, "rollback", self._rolled_back)

    def start(self) -> None:
        """From now on, keep back what can wait for COMMIT."""
        if not self._active and not self.driver.autocommit:
            self.install()
            self._active = True
            # Whoever ends the transaction, and whether he says so: see _rolled_back().
            put_back = partial(_put_back, ref(self), self.driver, self._factory)
            self._on_return = CallFunction(put_back)
            on_return(self.connection, self._on_return)

    def stop(self) -> None:
        """Keep back nothing more, and forget what was not sent."""
        self._waiting = []
        if self._active:
            self._active = False
            self.uninstall()
            withdraw(self.connection, self._on_return)

    def send(self, *, commit: bool = False) -> None:
        """Send what waits, with COMMIT behind it or without.

        :raises StaleDataError: an UPDATE has not found its row; nothing is committed.
        """
        if not self._waiting:
            return
        sending = self._sending(commit=commit)
        try:
            wait_for(self.connection, together(self.driver, sending.calls, sending.sent))
        except self.connection.dialect.loaded_dbapi.Error as error:
            self._tell(error, sending.failed(error))
        except BaseException as error:
            self.connection.invalidate(error)
            raise
        if commit and sending.cursors[-1].statusmessage != "COMMIT":
            raise PendingRollbackError("the server has answered COMMIT by a ROLLBACK")

    def execute(self, cursor: Cursor, query: Any, params: Any, how: Any) -> Steps[None]:
        if not self._keeps(cursor, query, params, many=False):
            yield from self._send_first()
            yield from super().execute(cursor, query, params, how)

    def executemany(self, cursor: Cursor, query: Any, rows: Any, how: Any) -> Steps[None]:
        if not self._keeps(cursor, query, rows, many=True):
            yield from self._send_first()
            yield from super().executemany(cursor, query, rows, how)

    def _keeps(self, cursor: Cursor, query: Any, given: Any, *, many: bool) -> bool:
        write, self._next = self._next, None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if write is None or write.statement != query:
            return False
        if given is not write.parameters:  # a listener for do_execute has put in its own
            if not _are_fixed(given if many else (given,)):
                return False
            write = write._replace(parameters=deepcopy(given), many=many)
        self._waiting.append(write)
        cursor.expected = len(write.rows)
        return True

    def _send_first(self) -> Steps[None]:
        """Who uses the driver past SQLAlchemy gets its own errors."""
        if self._waiting:
            sending = self._sending(commit=False)
            yield from together(self.driver, sending.calls, sending.sent)

    def _look_at(
        self,
        connection: Connection,
        cursor: Any,
        statement: str,
        parameters: Any,
        context: Any,
        executemany: bool,
    ) -> None:
        if not self._active or self._failure is not None:
            return
        cache = connection.get_execution_options().get("compiled_cache")
        undoable = connection.in_nested_transaction()
        waits = not (self.paused or undoable) and _can_wait(statement, parameters, context, cache)
        self._next = None
        if not waits:
            self.send()
        else:
            updated = context.compiled.statement.table.description if context.isupdate else None
            self._next = Write(statement, parameters, executemany, updated)

    def _commit(self, connection: Connection) -> None:
        if self._active:
            try:
                self.send(commit=self._may_commit())
            except BaseException:
                # A COMMIT that fails has ended its transaction, so SQLAlchemy may give the
                # connection back without another ROLLBACK.  This one was not even sent.
                with suppress(Exception):  # the error above is the one to tell
                    wait_for(self.connection, self._roll_back())
                raise
            finally:
                self.stop()

    def _rolled_back(self, _connection: Connection) -> None:
        self.stop()

    def _roll_back(self) -> Steps[None]:
        yield self.driver.rollback()

    def _sending(self, *, commit: bool) -> _Sending:
        waiting, self._waiting = self._waiting, []
        return _Sending(waiting, self.cursor, commit=commit)

    def _tell(self, error: Any, write: Write | None) -> NoReturn:
        """Raise the error as if its statement had just been executed."""
        if write is not None and write.updated is not None and error.sqlstate == _NOT_ONE:
            raise StaleDataError(_stale(write)) from error
        statement, parameters = ("COMMIT", None) if write is None else write[:2]
        self._failure = error
        try:
            self.connection.exec_driver_sql(statement, parameters)
        except DBAPIError as wrapped:
            if wrapped.orig is not error:  # the connection is lost, and says no more than that
                raise wrapped from error
            raise
        finally:
            self._failure = None
        raise error


class _Sending:
    """What is sent at one time."""

    def __init__(self, waiting: Sequence[Write], make: Callable[[], Any], *, commit: bool) -> None:
        self.calls: list[Call] = []
        self.cursors: list[Any] = []
        self.sent: list[Any] = []
        self._writes: list[Write | None] = []
        for write in waiting:
            for row in write.rows:
                # A cursor for each, which tells by its result whether the server has come to it.
                self._add(make(), write, write.sent, row, prepare=write.many or None)
        if commit:
            self._add(make(), None, "COMMIT", None, prepare=False)

    def _add(
        self, cursor: Any, write: Write | None, text: str, row: Any, *, prepare: bool | None
    ) -> None:
        self.cursors.append(cursor)
        self._writes.append(write)
        self.calls.append(lambda: cursor.execute(text, row, prepare=prepare))

    def failed(self, error: Any) -> Write | None:
        """The write that has met this error; None for COMMIT."""
        at = len(self.sent)
        if error.sqlstate is not None or at == len(self.calls):  # else it was not even sent
            answered = [cursor.pgresult is not None for cursor in self.cursors]
            at = answered.index(False)
        return self._writes[at]


def _put_back(travel: ref[DeferredWrites], driver: Any, factory: Any) -> None:
    """The connection goes back to its pool, and nobody has stopped what travels."""
    alive = travel()
    if alive is None:
        driver.cursor_factory = factory
    else:
        alive.stop()


def _can_wait(statement: str, parameters: Any, context: Any, cache: Any) -> bool:
    """Whether it is a flush's own statement, and all that the flush will ask of it is known."""
    words = "INSERT " if context.isinsert else "UPDATE " if context.isupdate else None
    if words is None or not statement.startswith(words) or context.compiled.effective_returning:
        return False
    # "The ORM makes use of its own compiled caches for flush operations", says SQLAlchemy of this
    # option; what else is executed, such as by a listener, may look at its count of rows.
    own = context.execution_options.get("compiled_cache")
    if own is None or own is cache:
        return False
    return _are_fixed(parameters if context.executemany else (parameters,))


def _are_fixed(rows: Any) -> bool:
    """Whether these are rows by name, of values that nobody can change."""
    return isinstance(rows, Sequence) and all(
        isinstance(row, Mapping) and all(type(value) in _FIXED for value in row.values())
        for row in rows
    )


def _stale(write: Write) -> str:
    """SQLAlchemy's sentence."""
    expected = len(write.rows)
    matched = "0 were matched" if expected == 1 else "fewer were matched"
    return (
        f"UPDATE statement on table '{write.updated}' expected to update {expected} row(s); "
        f"{matched}."
    )
