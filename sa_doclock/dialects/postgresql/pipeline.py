"""Several statements in one round trip, by psycopg 3's pipeline; sync, and under SQLAlchemy's async.

SQLAlchemy asks a cursor for its columns and rows as soon as ``execute()`` returns, so one round
trip is sent, and answered, inside one ``execute()``: that of a cursor which replaces the driver's
own, created by the connection's ``cursor_factory``.  Under asyncio it runs in a greenlet, which
awaits the answers of the driver, as SQLAlchemy does.

Three things here are not documented by psycopg:

- ``Pipeline.result_queue``.  psycopg waits for the answer of the BEGIN that it sends by itself,
  even in a pipeline, and writes each statement to the socket separately.  A statement that we send
  by its libpq wrapper is announced in this queue.
  tests/integration/pipeline/test_round_trips.py fails when that changes.
- ``Pipeline._fetch_gen()``, and ``generators.send()`` in it.  psycopg ends a pipeline with Sync,
  and with Flush if answers are outstanding.  The server starts the clock of an idle transaction or
  session at Sync, and stops it at the next message, which is Flush: no idle timeout would end the
  transaction after a lock, nor the session after a COMMIT.  Sync alone also sends the answers.
  tests/integration/pipeline/test_way_back.py fails when that changes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from operator import methodcaller
from threading import Lock
from typing import Any, Final
from weakref import ref

from psycopg import AsyncConnection, IsolationLevel
from psycopg.generators import send
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, event
from sqlalchemy.engine import Dialect
from sqlalchemy.util import await_only, greenlet_spawn

Call = Callable[[], Any]

# Threads: read and changed under the lock.  The events are a class's, which has few listeners.
_listened: Final[dict[type[Dialect], list[Mapping[str, Callable[..., Any]]]]] = {}
_listening = Lock()


def listen_once(dialect: type[Dialect], listeners: Mapping[str, Callable[..., Any]]) -> None:
    """Listen to events of all connections, by their names, unless this is done already.

    Listeners on each connection would cost more than their work.  Those of the class come first,
    before a listener that executes the statement in its own way.
    """
    with _listening:
        known = _listened.setdefault(dialect, [])
        if listeners not in known:
            for name, listener in listeners.items():
                event.listen(dialect, name, listener)
            known.append(listeners)


_make: Final[Callable[[Call], Any]] = methodcaller("__call__")
"""Makes a call of a driver that has its answer when it returns."""


def _make_and_await(call: Call) -> Any:
    """Call a driver whose answers are awaited, from a greenlet."""
    return await_only(call())


@dataclass(eq=False)
class Unread:
    """A call of the driver of whose answer only the error matters: it needs no cursor.

    :ivar cursor: creates a cursor of the driver, for a psycopg that accepts it in no other way.
    """

    text: str
    parameters: tuple[str, ...]
    cursor: Callable[[], Any]

    def __call__(self) -> Any:
        return self.cursor().execute(self.text, self.parameters or None)


# Threads: a cached pure function.
@lru_cache
def _as_sent(text: str) -> bytes:
    """Return a statement as the server gets it, with numbered parameters."""
    first, *others = text.split("%s")
    return "".join([first, *(f"${number}{part}" for number, part in enumerate(others, 1))]).encode()


def send_in_pipeline(driver: Any, calls: Iterable[Call]) -> None:
    """Send the statements of these calls in one round trip, with a due BEGIN.

    After the first failed statement, the server executes none of the others.  A call that fails
    here is the last one.
    """
    before = driver.pgconn.pipeline_status  # a program may have a pipeline open
    block, make = driver.pipeline(), _make
    if isinstance(driver, AsyncConnection):
        make, enter, leave = _make_and_await, block.__aenter__, block.__aexit__
    else:
        enter, leave = block.__enter__, block.__exit__
    pipeline = make(enter)
    failure: BaseException | None = None
    try:
        queue = getattr(pipeline, "result_queue", None)
        # Before entering the pipeline, which awaits the program's own statements, such as a COMMIT.
        begin = [] if queue is None else begin_of(driver)
        for call in chain(begin, calls):
            if queue is not None and isinstance(call, Unread):
                values = [*map(str.encode, call.parameters)]
                driver.pgconn.send_query_params(_as_sent(call.text), values or None)
                queue.append(None)
            else:
                make(call)
    except BaseException as error:  # noqa: BLE001  # raised below
        failure = _unless_freed(driver, error)
    try:
        _end(pipeline, partial(make, partial(leave, None, None, None)))
    except BaseException as error:  # noqa: BLE001  # raised below
        failure = _error_to_raise(failure, _unless_freed(driver, error))
    if failure is not None:
        if driver.pgconn.pipeline_status != before:
            driver.pgconn.finish()  # interrupted between two answers: useless
        raise failure


def _end(pipeline: Any, leave: Call) -> None:
    """End a pipeline and wait for its answers, without a Flush after its Sync."""
    fetch = getattr(pipeline, "_fetch_gen", None)
    if fetch is not None:
        pipeline._fetch_gen = partial(_fetch_after_sync, pipeline, fetch)  # noqa: SLF001  # see above
    try:
        leave()
    finally:
        if fetch is not None:
            del pipeline._fetch_gen  # noqa: SLF001  # a program may have the pipeline open


def _fetch_after_sync(pipeline: Any, fetch: Any, *, flush: bool) -> Generator[Any, Any, None]:
    if flush:
        yield from send(pipeline.pgconn)  # the bytes that the socket did not accept at once
    yield from fetch(flush=False)


def _unless_freed(driver: Any, error: BaseException) -> BaseException:
    """Return the error, unless Python frees an interrupted run, so that nobody waits for answers.

    :raises GeneratorExit: it does; the connection is closed.
    """
    if isinstance(error, GeneratorExit):
        driver.pgconn.finish()
        raise error
    return error


def _error_to_raise(failure: BaseException | None, later: BaseException) -> BaseException:
    """Return the interruption, if either error is one, or else the first error."""
    # psycopg leaves its pipeline after an interruption, and may fail in doing so.
    for error in (failure, later, later.__context__):
        if error is not None and not isinstance(error, Exception):
            return error
    return failure or later


def begin_of(driver: Any) -> list[Call]:
    """Return the BEGIN that the driver would send before the next statement, and wait for.

    It has the documented content; empty if a transaction has begun.
    """
    if driver.autocommit or driver.pgconn.transaction_status != TransactionStatus.IDLE:
        return []
    level: IsolationLevel | None = driver.isolation_level
    words = ["BEGIN"]
    if level is not None:
        words += ["ISOLATION LEVEL", level.name.replace("_", " ")]
    if driver.read_only is not None:
        words.append("READ ONLY" if driver.read_only else "READ WRITE")
    if driver.deferrable is not None:
        words.append("DEFERRABLE" if driver.deferrable else "NOT DEFERRABLE")
    return [Unread(" ".join(words), (), driver.cursor)]


class CursorInterceptor:
    """Executes the statements of a connection in place of the driver's own cursors.

    A subclass sets ``connection``, and ``driver`` to its driver's own.
    """

    connection: Connection
    driver: Any
    _factory: Any = None
    _server_factory: Any = None

    def cursor(self) -> Any:
        """Return a cursor of the driver."""
        return self._factory(self.driver)

    def execute(self, cursor: InterceptedCursor, query: Any, params: Any, options: Any) -> None:
        """Execute one statement."""
        self.run(partial(cursor.own.execute, query, params, **options))

    def executemany(self, cursor: InterceptedCursor, query: Any, rows: Any, options: Any) -> None:
        """Execute one statement with many rows."""
        call = partial(cursor.own.executemany, query, rows, **options)
        self.before_other()
        send_in_pipeline(self.driver, [call])

    def run(self, call: Call) -> None:
        """Make one call of the driver."""
        make = _make_and_await if self.connection.dialect.is_async else _make
        make(call)

    def before_other(self) -> None:
        """Prepare for a call other than ``execute()`` and ``executemany()``: COPY, ``stream()``."""

    def install(self) -> None:
        """Intercept every cursor that the connection creates from now on."""
        driver, interceptor = self.driver, ref(self)
        # A pooled connection must not keep the interceptor alive.
        self._factory, self._server_factory = driver.cursor_factory, driver.server_cursor_factory
        is_async = self.connection.dialect.is_async
        intercepted = AsyncInterceptedCursor if is_async else InterceptedCursor
        driver.cursor_factory = partial(_make_cursor, interceptor, intercepted, self._factory)
        driver.server_cursor_factory = partial(
            _make_cursor, interceptor, intercepted, self._server_factory
        )

    def uninstall(self) -> None:
        """Restore the driver's own cursors."""
        self.driver.cursor_factory = self._factory
        self.driver.server_cursor_factory = self._server_factory


def _make_cursor(
    reference: ref[CursorInterceptor],
    intercepted: type[InterceptedCursor],
    factory: Callable[..., Any],
    driver: Any,
    *args: Any,
    **options: Any,
) -> Any:
    interceptor = reference()
    if interceptor is None:
        return factory(driver, *args, **options)
    return intercepted(partial(factory, driver, *args, **options), interceptor)


class InterceptedCursor:
    """Replaces a cursor of the driver, and creates that, as ``own``, when it is used.

    Attributes are set on the driver's cursor; its own are set in ``vars()``.

    :ivar expected: the number of rows that an unsent statement will certainly find.
    """

    own: Any
    interceptor: CursorInterceptor
    expected: int | None = None

    def __init__(self, make: Callable[[], Any], interceptor: CursorInterceptor) -> None:
        vars(self).update(_make=make, interceptor=interceptor)

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        self.interceptor.execute(self, query, params, options)
        return self

    def executemany(self, query: Any, params_seq: Any, **options: Any) -> Any:
        self.interceptor.executemany(self, query, params_seq, options)

    @property
    def rowcount(self) -> int:
        return self.own.rowcount if self.expected is None else self.expected

    @property
    def description(self) -> Any:
        return self.own.description if self.expected is None else None

    def close(self) -> Any:
        return self.own.close() if self.expected is None else None

    @contextmanager
    def copy(self, *args: Any, **options: Any) -> Iterator[Any]:
        self.interceptor.before_other()
        with self.own.copy(*args, **options) as copy:
            yield copy

    def stream(self, *args: Any, **options: Any) -> Iterator[Any]:
        self.interceptor.before_other()
        yield from self.own.stream(*args, **options)

    def __getattr__(self, name: str) -> Any:
        if name == "own":
            own = vars(self)["own"] = vars(self)["_make"]()
            return own
        return getattr(self.own, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.own, name, value)  # read by the driver's cursor, such as row_factory

    def __iter__(self) -> Iterator[Any]:
        return iter(self.own)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.own.close()


class AsyncInterceptedCursor(InterceptedCursor):
    """Replaces a cursor of the driver under asyncio."""

    async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        await greenlet_spawn(self.interceptor.execute, self, query, params, options)
        return self

    async def executemany(self, query: Any, params_seq: Any, **options: Any) -> Any:
        await greenlet_spawn(self.interceptor.executemany, self, query, params_seq, options)

    @asynccontextmanager
    async def copy(self, *args: Any, **options: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        await greenlet_spawn(self.interceptor.before_other)
        async with self.own.copy(*args, **options) as copy:
            yield copy

    async def stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        await greenlet_spawn(self.interceptor.before_other)
        async for row in self.own.stream(*args, **options):
            yield row

    def __aiter__(self) -> Any:
        return self.own.__aiter__()

    async def __aenter__(self) -> Any:
        return self

    async def close(self) -> None:
        if self.expected is None:
            await self.own.close()

    async def __aexit__(self, *_: object) -> None:
        await self.own.close()
