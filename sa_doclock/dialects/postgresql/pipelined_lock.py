"""A lock of PostgreSQL by psycopg 3, and the statements that are sent with it in one round trip."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, ref

from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Select
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TypeEngine

from ...options import LockOptions
from ..base import Read
from .limits import PostgreSQLWaits, lock_limit, waits_for_lock
from .pipeline import Call, CursorInterceptor, InterceptedCursor, Unread, begin_of, send_in_pipeline

# Precedes an early read.  pgpool-II picks a server for it before the lock is answered, perhaps a
# standby; but not for a SELECT after a comment, unless allow_sql_comments is on.
# https://www.pgpool.net/docs/latest/en/html/runtime-config-load-balancing.html, allow_sql_comments
_TO_PRIMARY: Final = "/*NO LOAD BALANCE*/ "


class _EarlyRead(NamedTuple):
    text: str
    parameters: Mapping[str, Any]
    cursor: Any
    """The driver's own; it has no result if the server has not reached the statement."""


class PipelinedLock(CursorInterceptor, AbstractContextManager[None]):
    """Sends a lock with its limit and its BEGIN; on demand also with the reads after it.

    It is the block in which the lock is taken.  The result of an early read goes to the identical
    statement if that comes next.  The first other statement discards all results: it might have
    written. If an early read has aborted the transaction and no statement has asked for it, the end
    of the block raises its error.

    :param seconds: how long to wait for the lock; None: the server's configuration.
    :param reads: returns the early reads, when the first lock is taken; None: there are none.
    :param few_rows: it locks a few rows by their keys, so that its whole statement is limited.
    :param after: a statement that is sent once, right after the first lock.
    """

    def __init__(
        self,
        connection: Connection,
        seconds: float | None,
        reads: Callable[[], Iterable[Read]] | None = None,
        *,
        few_rows: bool = False,
        after: str | None = None,
    ) -> None:
        self.connection, self.driver = connection, connection.connection.driver_connection
        self._after = after
        self._limit = None if seconds is None else lock_limit(seconds, few_rows=few_rows)
        self._reads = reads
        self._early: list[_EarlyRead] = []
        self._failure: Exception | None = None  # of an early read

    def __enter__(self) -> None:
        self.install()
        # With stream_results, the server would lock rows as they are fetched, without a limit.
        self.driver.server_cursor_factory = lambda driver, **_: driver.cursor()

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            status = self.driver.pgconn.transaction_status
            aborted = status == TransactionStatus.INERROR
            if kind is None and self._failure is not None and aborted:
                # The lock is lost, and nothing has raised yet.
                failed = next(read for read in self._early if read.cursor.pgresult is None)
                self.connection.exec_driver_sql(failed.text, failed.parameters)
        finally:
            self.uninstall()

    def execute(self, cursor: InterceptedCursor, query: Any, params: Any, options: Any) -> None:
        if self._early and self._use_early_result(cursor, query, params):
            return
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self._early = []
        call = partial(cursor.own.execute, query, params, **options)
        if isinstance(query, str) and waits_for_lock(query):
            calls: list[Call] = [call]
            if self._limit is not None:
                sent = self._limit.statements
                write = Unread(sent.write, self._limit.parameters, self.cursor)
                calls = [write, call, Unread(sent.restore, (), self.cursor)]
            if self._after is not None:
                calls.append(Unread(self._after, (), self.cursor))
                self._after = None
            if self._reads is None:
                send_in_pipeline(self.driver, calls)
            else:
                self._lock_and_read(cursor, calls, self._early_reads(self._reads()))
        elif self._reads is not None and begin_of(self.driver):
            send_in_pipeline(self.driver, [call])
        else:
            self.run(call)

    def before_other(self) -> None:
        self._early = []  # it might write

    def _lock_and_read(
        self, cursor: InterceptedCursor, calls: list[Call], early: list[_EarlyRead]
    ) -> None:
        calls += [
            partial(read.cursor.execute, _TO_PRIMARY + read.text, read.parameters) for read in early
        ]
        try:
            send_in_pipeline(self.driver, calls)
        except self.connection.dialect.loaded_dbapi.Error as error:
            if self.driver.closed or not _is_of_early_read(error, cursor, early):
                raise
            # The lock was granted.  The statement that asks for this read raises its error.
            self._failure = error
        self._early = early

    def _early_reads(self, reads: Iterable[Read]) -> list[_EarlyRead]:
        if self.connection.get_execution_options().get("schema_translate_map"):
            return []  # executing the text adds it
        dialect = self.connection.dialect
        sent = (_text_and_parameters(*read, dialect) for read in reads)
        return [_EarlyRead(*read, self.cursor()) for read in sent if read is not None]

    def _use_early_result(self, cursor: InterceptedCursor, query: Any, params: Any) -> bool:
        """Return whether this statement was an early read; if so, give its result to the cursor."""
        for read in self._early:
            if read.text == query and read.parameters == params:
                if read.cursor.pgresult is None:
                    return False
                self._early.remove(read)
                vars(cursor)["own"] = read.cursor
                return True
        return False


class PipelinedWaits(PostgreSQLWaits):
    """The waits of PostgreSQL, limited in one round trip with the lock."""

    limiting = PipelinedLock

    def sent_around(
        self, connection: Connection, lock: LockOptions, seconds: float | None
    ) -> tuple[str, ...]:
        if seconds is None:
            return ()
        return lock_limit(seconds, few_rows=LockOptions.SkipLocked not in lock).as_sent()


def _is_of_early_read(error: Any, cursor: InterceptedCursor, early: Sequence[_EarlyRead]) -> bool:
    """Return whether the server granted the lock but refused an early read."""
    return (
        error.sqlstate is not None
        and not error.sqlstate.startswith(("08", "57P"))  # the connection is lost
        and cursor.own.pgresult is not None
        and not all(read.cursor.pgresult for read in early)
    )


class _Template(NamedTuple):
    """The text and values that SQLAlchemy gives to a cursor, without the program's values."""

    text: str
    values: Mapping[str, Any]
    types: Mapping[str, TypeEngine[Any]]
    """Of the values that have processors."""


# Global: a statement that reads parts is the same object each time, in all sessions.  An entry must
# not refer to the dialect, as a value processor may: the dialect would keep the statement, and
# itself, alive.
# Threads: an entry is one tuple, replaced as a whole; two threads may build the same one.
_templates: WeakKeyDictionary[Select[Any], tuple[ref[Dialect], _Template | None]]
_templates = WeakKeyDictionary()


def _text_and_parameters(
    statement: Select[Any], parameters: Mapping[str, Any], dialect: Dialect
) -> tuple[str, Mapping[str, Any]] | None:
    """Return the text and the parameters that SQLAlchemy will send, or None if that is uncertain."""
    known = _templates.get(statement)
    if known is None or known[0]() is not dialect:
        known = _templates[statement] = ref(dialect), _template(statement, dialect)
    template = known[1]
    if template is None:
        return None
    bound = {**template.values, **parameters}
    for name, type_ in template.types.items():
        bound[name] = _processor(type_, dialect)(bound[name])
    return template.text, bound


def _template(statement: Select[Any], dialect: Dialect) -> _Template | None:
    compiled = statement.compile(dialect=dialect)
    assert isinstance(compiled, SQLCompiler)
    if compiled.escaped_bind_names or compiled.post_compile_params:
        return None
    types = {name: bind.type for name, bind in compiled.binds.items()}
    processed = {name: type_ for name, type_ in types.items() if _processor(type_, dialect)}
    return _Template(str(compiled), dict(compiled.params), processed)


def _processor(type_: TypeEngine[Any], dialect: Dialect) -> Any:
    return type_.dialect_impl(dialect).bind_processor(dialect)
