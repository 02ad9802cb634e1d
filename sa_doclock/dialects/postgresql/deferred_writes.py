"""The writes of the last flush are sent together with COMMIT, in one round trip.

The server executes nothing after a failed statement, so COMMIT is safe after them.  An UPDATE that
finds no row does not fail, and its row count would arrive only after the commit; so an UPDATE is
sent in a form that fails if it does not find its row.  A statement that may need its answer is not
kept back: it is sent after the kept writes, and answered at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from functools import partial
from typing import Any, Final, Literal, NamedTuple, NoReturn
from weakref import WeakSet, ref

from sqlalchemy import Connection, RootTransaction, event
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.orm.exc import StaleDataError
from sqlalchemy.util import greenlet_spawn

from ...interruptions import ErrorsIgnored
from ...keys import IMMUTABLE
from ...pool import CallFunction, actions_of
from ..base import Read
from .limits import PostgreSQLHoldLimit, after_lock
from .pipeline import Call, CursorInterceptor, InterceptedCursor, listen_once, send_in_pipeline
from .pipelined_lock import PipelinedLock

# If the number of buckets is not positive, width_bucket() raises an error that nothing else raises:
# 2201G, invalid_argument_for_width_bucket_function.
_ROW_MISSING: Final = "2201G"
_EXACTLY_ONE: Final = (
    "WITH doclock AS ({}\nRETURNING 1) "
    "SELECT width_bucket(1, 0, 1, (count(*) = 1)::int) FROM doclock"
)

_COMMIT: Final = "COMMIT"


class KeptWrite(NamedTuple):
    """One statement of a flush."""

    statement: str
    parameters: Any
    many: bool
    updated: str | None
    """The table of an UPDATE, which must find each row."""

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The parameters of each row."""
        return self.parameters if self.many else (self.parameters,)

    @property
    def sent(self) -> str:
        """The text, in a form that fails if SQLAlchemy would reject the row count."""
        return self.statement if self.updated is None else _EXACTLY_ONE.format(self.statement)


class PsycopgPipeline(CursorInterceptor):
    """The :class:`Pipeline` of one connection, with the writes that wait for COMMIT."""

    commit_sent = False
    _may_commit: Callable[[], bool] | None = None
    _transaction: RootTransaction | None = None
    """The transaction of the waiting writes."""
    _next: KeptWrite | None = None
    _failure: Exception | None = None
    _executes = _listens = _paused = False

    def __init__(self, connection: Connection) -> None:
        self.connection, self.driver = connection, connection.connection.driver_connection
        self._kept: list[KeptWrite] = []

    def locking(
        self,
        seconds: float | None,
        reads: Callable[[], Iterable[Read]] | None,
        *,
        few_rows: bool,
        hold_limit: float | None = None,
    ) -> AbstractContextManager[None]:
        after = None
        if hold_limit is not None:
            keep_idle_clock(self.connection)
            after = after_lock(self.connection, hold_limit)
        return PipelinedLock(self.connection, seconds, reads, few_rows=few_rows, after=after)

    def keep_writes(self) -> None:
        if keeps_writes(self.connection) or self.driver.autocommit:
            return
        listen_once(type(self.connection.dialect), _BEFORE_EXECUTE)
        setattr(self.connection, _KEEPING, ref(self))
        self.install()
        # The transaction may end without forget_writes(): then the pool restores the cursors.
        restore = partial(
            _restore_cursors, ref(self), self.driver, self._factory, self._server_factory
        )
        self._on_return, self._actions = CallFunction(restore), actions_of(self.connection)
        self._actions[self._on_return] = None

    def expect_commit(self, may_commit: Callable[[], bool], *, alone: bool) -> None:
        self._may_commit = may_commit
        if self._executes or not alone:
            self._listen_to_commit()

    def _listen_to_commit(self) -> None:
        # As late as possible, because SQLAlchemy then calls listeners for each statement.  Not on
        # the engine, where every statement of other sessions would pay for it too.
        if not self._listens:
            self._listens = True
            # The connection belongs to the session, and ends with its transaction.
            event.listen(self.connection, "commit", _before_commit)

    def forget_writes(self) -> None:
        self._kept = []
        if vars(self.connection).pop(_KEEPING, None) is not None:
            self.uninstall()
            self._actions.pop(self._on_return, None)

    def pause(self, *, paused: bool) -> None:
        self._paused = paused

    def send_writes(self, *, commit: bool = False) -> None:
        """Send the kept writes, followed by COMMIT or not.

        :raises StaleDataError: an UPDATE did not find its row; nothing is committed.
        """
        if not self._has_kept():
            return
        batch = self._next_batch(_COMMIT if commit else None)
        self.commit_sent = commit
        try:
            self._send(batch)
        finally:
            self.commit_sent = False
        if commit and batch.cursors[-1].statusmessage != _COMMIT:
            raise PendingRollbackError("the server answered COMMIT with a ROLLBACK")

    def ask(self, question: str) -> Sequence[str | None]:
        self._drop_rolled_back()
        batch = self._next_batch(question)
        self._send(batch)
        result = batch.cursors[-1].pgresult
        values = [result.get_value(0, column) for column in range(result.nfields)]
        return [None if value is None else value.decode() for value in values]

    def _send(self, batch: _Batch) -> None:
        try:
            send_in_pipeline(self.driver, batch.calls())
        except self.connection.dialect.loaded_dbapi.Error as error:
            self._raise(error, batch)
        except BaseException as error:
            self.connection.invalidate(error)
            raise

    def execute(self, cursor: InterceptedCursor, query: Any, params: Any, options: Any) -> None:
        if not self._keep(cursor, query, params, many=False):
            super().execute(cursor, query, params, options)

    def executemany(self, cursor: InterceptedCursor, query: Any, rows: Any, options: Any) -> None:
        if not self._keep(cursor, query, rows, many=True):
            super().executemany(cursor, query, rows, options)

    def run(self, call: Call) -> None:
        self.before_other()
        super().run(call)

    def before_other(self) -> None:
        """Send the writes before a statement of the driver, whose user gets the driver's errors."""
        if self._has_kept():
            send_in_pipeline(self.driver, self._next_batch().calls())

    def _keep(self, cursor: InterceptedCursor, query: Any, params: Any, *, many: bool) -> bool:
        """Return whether this statement is kept back; False: execute it now."""
        write, self._next = self._next, None
        if cursor.expected is not None:
            vars(cursor)["expected"] = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if write is None or write.statement != query:
            return False
        if params is not write.parameters:  # a listener for do_execute has replaced them
            if not _are_immutable(params if many else (params,)):
                return False
            write = write._replace(parameters=deepcopy(params), many=many)
        self._drop_rolled_back()
        self._kept.append(write)
        vars(cursor)["expected"] = len(write.rows)
        return True

    def _drop_rolled_back(self) -> None:
        """Drop the writes of a transaction that was rolled back, perhaps without the session."""
        transaction = self.connection.get_transaction()
        if transaction is not self._transaction:
            self._kept, self._transaction = [], transaction

    def _has_kept(self) -> bool:
        if self._kept:
            self._drop_rolled_back()
        return bool(self._kept)

    def note_next(self, statement: str, parameters: Any, context: Any) -> None:
        """Note the statement that is executed next; send the kept writes if it cannot wait."""
        if self._failure is not None:
            return
        self._executes = True
        if self._may_commit is not None:
            self._listen_to_commit()
        self._next = None
        if self._waits(statement, parameters, context):
            updated = context.compiled.statement.table.description if context.isupdate else None
            self._next = KeptWrite(statement, parameters, context.executemany, updated)
        else:
            self.send_writes()

    def _waits(self, statement: str, parameters: Any, context: Any) -> bool:
        if self._paused or self.connection.in_nested_transaction():
            return False
        cache = self.connection.get_execution_options().get("compiled_cache")
        return _can_wait(statement, parameters, context, cache)

    def before_commit(self) -> None:
        """Send the kept writes, with COMMIT if possible, and stop keeping writes back."""
        try:
            assert self._may_commit is not None
            self.send_writes(commit=self._may_commit())
        except BaseException:
            # A failed COMMIT has ended its transaction, so SQLAlchemy may return the connection
            # without another ROLLBACK.  This COMMIT was not even sent.
            with ErrorsIgnored():  # keeps the error above
                super().run(self.driver.rollback)
            raise
        finally:
            self.forget_writes()

    def _next_batch(self, last: str | None = None) -> _Batch:
        kept, self._kept = self._kept, []
        return _Batch(kept, self.cursor, last)

    def _raise(self, error: Any, batch: _Batch) -> NoReturn:
        """Raise this error as if its statement had just been executed."""
        write = batch.failed(error)
        if write is not None and write.updated is not None and error.sqlstate == _ROW_MISSING:
            expected = len(write.rows)
            matched = "0 were matched" if expected == 1 else "fewer were matched"
            raise StaleDataError(  # SQLAlchemy's message
                f"UPDATE statement on table '{write.updated}' expected to update {expected} row(s); "
                f"{matched}."
            ) from error
        statement, parameters = (batch.last, None) if write is None else write[:2]
        assert statement is not None
        self._failure = error
        try:
            self.connection.exec_driver_sql(statement, parameters)
        except DBAPIError as wrapped:
            if wrapped.orig is not error:  # the connection is lost; the text adds nothing
                raise wrapped from error
            raise
        finally:
            self._failure = None
        raise error


class _Batch:
    """The statements that are sent in one round trip.

    :param last: COMMIT or a question, after the writes.
    """

    def __init__(
        self, writes: Sequence[KeptWrite], make_cursor: Callable[[], Any], last: str | None
    ) -> None:
        rows: list[tuple[KeptWrite | None, str, Any, bool | None]] = [
            (write, write.sent, row, write.many or None) for write in writes for row in write.rows
        ]
        if last is not None:
            rows.append((None, last, None, False))
        self._rows, self.last = rows, last
        # One cursor per statement: its result shows how far the server got.
        self.cursors = [make_cursor() for _ in rows]
        self._sent = 0

    def calls(self) -> Iterator[Call]:
        for cursor, (_, text, row, prepare) in zip(self.cursors, self._rows, strict=True):
            yield partial(cursor.execute, text, row, prepare=prepare)
            self._sent += 1

    def failed(self, error: Any) -> KeptWrite | None:
        """Return the write that has this error; None: the last statement."""
        at = self._sent
        if self.last is not None and error.sqlstate is None and at == len(self._rows):
            return None  # the connection is lost, and the last statement was sent
        if error.sqlstate is not None or at == len(self._rows):  # otherwise it was not even sent
            answered = [cursor.pgresult is not None for cursor in self.cursors]
            at = answered.index(False)
        return self._rows[at][0]


_KEEPING: Final = "sa_doclock_pipeline"
"""The attribute of a Connection with the pipeline that keeps its writes back.

It does not keep the pipeline alive, which refers to the connection.
"""


def keeps_writes(connection: Connection) -> bool:
    """Return whether every statement of this connection passes through a pipeline of ours now."""
    return hasattr(connection, _KEEPING)


# As a method of the pipeline, the listener would form a cycle with the connection.
def _before_commit(connection: Connection) -> None:
    pipeline = getattr(connection, _KEEPING, _gone)()
    if pipeline is not None:
        pipeline.before_commit()


def _before_execute(_cursor: Any, statement: str, parameters: Any, context: Any) -> None:
    pipeline = getattr(context.root_connection, _KEEPING, _gone)()
    if pipeline is not None:
        pipeline.note_next(statement, parameters, context)


def _gone() -> None:
    """Stand in for the weak reference to a pipeline that is gone."""


_BEFORE_EXECUTE: Final[Mapping[str, Callable[..., Any]]] = {
    "do_execute": _before_execute,
    "do_executemany": _before_execute,
    "do_execute_no_params": lambda cursor, statement, context: _before_execute(
        cursor, statement, None, context
    ),
}


def _restore_cursors(
    writes: ref[PsycopgPipeline], driver: Any, factory: Any, server_factory: Any
) -> None:
    """Restore the driver's own cursors on a connection that returns to its pool."""
    alive = writes()
    if alive is None:
        driver.cursor_factory, driver.server_cursor_factory = factory, server_factory
    else:
        alive.forget_writes()


def _can_wait(statement: str, parameters: Any, context: Any, cache: Any) -> bool:
    """Return whether this is a flush's own statement, which needs no answer."""
    words = "INSERT " if context.isinsert else "UPDATE " if context.isupdate else None
    if words is None or not statement.startswith(words) or context.compiled.effective_returning:
        return False
    # "The ORM makes use of its own compiled caches for flush operations", says SQLAlchemy about
    # this option; other code that executes, such as a listener, may read its row count.
    own = context.execution_options.get("compiled_cache")
    if own is None or own is cache:
        return False
    return _are_immutable(parameters if context.executemany else (parameters,))


def _are_immutable(rows: Any) -> bool:
    if not isinstance(rows, (tuple, list)):
        return False
    for row in rows:
        if not (isinstance(row, dict) and IMMUTABLE.issuperset(map(type, row.values()))):
            return False
    return True


# Threads: add() and a search in a set are atomic.
# Each belongs to a session, and ends with its transaction.
_limited: Final[WeakSet[Connection]] = WeakSet()


def keep_idle_clock(connection: Connection) -> None:
    """Let the server count the idle time of this transaction after ``executemany()`` too.

    psycopg sends the rows in a pipeline, which stops the server's clock of an idle transaction: see
    pipeline.py.  Inside a pipeline of ours it opens none.
    """
    _limited.add(connection)
    listen_once(type(connection.dialect), {"do_executemany": _execute_many})


class PipelinedHoldLimit(PostgreSQLHoldLimit):
    """The limits of a transaction, effective after many rows too."""

    def limit(self, connection: Connection, seconds: float) -> None:
        keep_idle_clock(connection)
        super().limit(connection, seconds)


def _execute_many(
    cursor: Any, statement: str, parameters: Any, context: Any
) -> Literal[True] | None:
    """Execute it instead of SQLAlchemy, by the same method of the cursor."""
    connection = context.root_connection
    if connection not in _limited or keeps_writes(connection):
        return None
    call = partial(cursor.executemany, statement, parameters)
    if connection.dialect.is_async:  # SQLAlchemy's cursor itself waits for the driver
        call = partial(greenlet_spawn, call)
    driver = connection.connection.driver_connection
    send_in_pipeline(driver, [call])
    return True
