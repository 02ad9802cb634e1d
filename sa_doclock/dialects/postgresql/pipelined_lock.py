"""A lock of PostgreSQL by psycopg 3, and what travels with it in one round trip.

Of the lock timeout nothing is known yet when the next statement is sent: a setting of our own
keeps the old value, and ends with the transaction too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, ref

from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Select
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TypeEngine

from ...options import milliseconds
from ..base import Read
from .pipeline import Call, Cursor, CursorInterceptor, Steps, starts_transaction, together

_PUT_TIMEOUT: Final = (
    "SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), "
    "set_config('lock_timeout', %s, true)"
)
_TAKE_TIMEOUT_BACK: Final = (
    "SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true)"
)
# One of these is in the text of every statement that waits for a lock.
_LOCKING: Final = ("FOR UPDATE", "FOR SHARE", "pg_advisory_xact_lock")


class PipelinedLock(CursorInterceptor):
    """A lock travels with its limit; also with its BEGIN, and with what is sure to be read after it.

    What was read ahead is given to the statements that ask for it next, word for word, and thrown
    away at the first one that is another: it might have written.

    :param seconds: how long the lock may be waited for; None: as the server is configured.
    :param reads: what to read ahead, when the first lock is taken; None: nothing, and BEGIN goes
        before, as ever.
    """

    def __init__(
        self,
        connection: Connection,
        seconds: float | None,
        reads: Callable[[], Iterable[Read]] | None = None,
    ) -> None:
        super().__init__(connection)
        self._limit = None if seconds is None else f"{milliseconds(seconds)}ms"
        self._begins = reads is not None
        self._reads = reads or tuple
        self._ahead: list[tuple[str, Mapping[str, Any], Any]] = []
        self._failure: Exception | None = None  # of a read ahead

    @contextmanager
    def installed(self) -> Iterator[None]:
        """``with conductor.conducting():`` a read that has failed is not passed over in it."""
        named = self.driver.server_cursor_factory
        with super().installed():
            # Of an engine with stream_results: the server would lock row by row, as they are
            # fetched, and by statements that have no limit.
            self.driver.server_cursor_factory = _of_no_server
            try:
                yield
            finally:
                self.driver.server_cursor_factory = named
            aborted = self.driver.pgconn.transaction_status == TransactionStatus.INERROR
            if self._failure is not None and aborted:  # nobody has asked, and the lock is lost
                asked = next(one for one in self._ahead if one[2].pgresult is None)
                self.connection.exec_driver_sql(*asked[:2])

    def execute(self, cursor: Cursor, query: Any, params: Any, how: Any) -> Steps[None]:
        locking = isinstance(query, str) and any(words in query for words in _LOCKING)
        if self._was_read(cursor, query, params):
            return
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self._ahead = []
        if not (locking or (self._begins and starts_transaction(self.driver))):
            yield from super().execute(cursor, query, params, how)
            return
        calls: list[Call] = [lambda: cursor.own.execute(query, params, **how)]
        if locking and self._limit is not None:
            limit = (self._limit,)
            calls.insert(0, lambda: self.cursor().execute(_PUT_TIMEOUT, limit))
            calls.append(lambda: self.cursor().execute(_TAKE_TIMEOUT_BACK))
        ahead = [*self._ahead_of()] if locking else []
        calls += [
            lambda own=own, text=text, bound=bound: own.execute(text, bound)  # type: ignore[misc]
            for text, bound, own in ahead
        ]
        try:
            yield from together(self.driver, calls, [], begin=self._begins)
        except self.connection.dialect.loaded_dbapi.Error as error:
            # The lock was granted; the error is told to who asks for the first read without answer.
            if self.driver.closed or not _is_of_a_statement(error):
                raise
            if cursor.own.pgresult is None or all(own.pgresult for _, _, own in ahead):
                raise
            self._failure = error
        self._ahead = ahead

    def _ahead_of(self) -> Iterator[tuple[str, Mapping[str, Any], Any]]:
        if self.connection.get_execution_options().get("schema_translate_map"):
            return  # it is put into the text when that is executed
        for statement, parameters in self._reads():
            sent = _sent(statement, parameters, self.connection.dialect)
            if sent is not None:
                yield *sent, self.cursor()

    def _was_read(self, cursor: Cursor, query: Any, params: Any) -> bool:
        for found in self._ahead:
            text, bound, own = found
            if text == query and bound == params:
                if own.pgresult is None:
                    return False
                self._ahead.remove(found)
                cursor.own = own
                return True
        return False


def _of_no_server(driver: Any, **_: Any) -> Any:
    return driver.cursor()


def _is_of_a_statement(error: Any) -> bool:
    """Whether the server has told it of a statement, and the connection is as it was."""
    return error.sqlstate is not None and not error.sqlstate.startswith(("08", "57P"))


class _Template(NamedTuple):
    """What SQLAlchemy gives to the cursor for a statement, without a value from outside."""

    text: str
    values: Mapping[str, Any]
    types: Mapping[str, TypeEngine[Any]]


# A statement of parts is the same object every time.  No reference to the dialect, which would
# keep it, and itself, alive.
_templates: WeakKeyDictionary[Select[Any], tuple[ref[Dialect], _Template | None]]
_templates = WeakKeyDictionary()


def _sent(
    statement: Select[Any], parameters: Mapping[str, Any], dialect: Dialect
) -> tuple[str, Mapping[str, Any]] | None:
    """The text and the parameters that SQLAlchemy will send; None where that is not sure."""
    known = _templates.get(statement)
    if known is None or known[0]() is not dialect:
        known = _templates[statement] = ref(dialect), _template(statement, dialect)
    template = known[1]
    if template is None:
        return None
    bound = {}
    for name, value in {**template.values, **parameters}.items():
        processor = template.types[name].dialect_impl(dialect).bind_processor(dialect)
        bound[name] = value if processor is None else processor(value)
    return template.text, bound


def _template(statement: Select[Any], dialect: Dialect) -> _Template | None:
    compiled = statement.compile(dialect=dialect)
    assert isinstance(compiled, SQLCompiler)
    if compiled.escaped_bind_names or compiled.post_compile_params:
        return None
    types = {name: bind.type for name, bind in compiled.binds.items()}
    return _Template(str(compiled), dict(compiled.params), types)
