"""Several statements in one round trip, by psycopg 3's pipeline; sync, and under SQLAlchemy's async.

SQLAlchemy asks a cursor for its columns and rows as soon as ``execute()`` returns, so one round trip
is sent, and answered, inside of one ``execute()``: that of a cursor which replaces the driver's
own, made by the connection's ``cursor_factory``.  Steps that wait for the server are a generator,
as psycopg's own are; it yields calls of the driver, whose answers are awaited under asyncio.

Three things here are not documented by psycopg:

- ``Pipeline.result_queue``.  psycopg waits for the answer of the BEGIN that it sends by itself, also
  in a pipeline; ours, sent by its libpq wrapper, is announced in this queue.
  tests/integration/pipeline/test_round_trips.py fails when that ends.
- ``Pipeline._fetch_gen()``, and ``generators.send()`` in it.  psycopg ends a pipeline with Sync, and
  with Flush where not all answers have come yet.  The server starts the clock of an idle transaction
  or session at Sync, and stops it at the next message, which is Flush: no idle timeout would end the
  transaction after a lock, nor the session after a COMMIT.  Sync alone has the answers sent too.
  tests/integration/pipeline/test_last_message.py fails when that ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache, partial
from typing import Any, Final
from weakref import ref

from psycopg import IsolationLevel
from psycopg.generators import send
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection
from sqlalchemy.util import await_only

Call = Callable[[], Any]
Steps = Generator[Iterable[Call], Any, None]
"""Calls of the driver, some at a time; what the last of them has returned comes back."""


def run_sync(steps: Steps) -> None:
    """Run the steps with a driver that has waited when it returns."""
    answer = None
    try:
        calls = next(steps)
        while True:
            try:
                for call in calls:
                    answer = call()
            except BaseException as error:  # noqa: BLE001, PERF203  # the generator decides
                calls = steps.throw(error)
            else:
                calls = steps.send(answer)
    except StopIteration:
        pass


async def run_async(steps: Steps) -> None:
    """Run the steps with a driver whose answers are awaited."""
    answer = None
    try:
        calls = next(steps)
        while True:
            try:
                for call in calls:
                    answer = await call()
            except BaseException as error:  # noqa: BLE001, PERF203  # the generator decides
                calls = steps.throw(error)
            else:
                calls = steps.send(answer)
    except StopIteration:
        pass


def run_steps(connection: Connection, steps: Steps) -> None:
    """Run the steps from where SQLAlchemy runs: in a greenlet, under asyncio."""
    if connection.dialect.is_async:
        await_only(run_async(steps))
    else:
        run_sync(steps)


def send_in_pipeline(driver: Any, calls: Iterable[Call], *, begin: bool = True) -> Steps:
    """Send the statements of these calls in one round trip, with BEGIN where it is due.

    After the first statement that fails the server runs none of the others.  A call that fails
    here is the last one.

    :param begin: False leaves BEGIN to the driver, which waits for its answer.
    """
    before = driver.pgconn.pipeline_status  # a program may have a pipeline open
    enter, leave = _bounds(driver.pipeline())
    pipeline = yield [enter]
    failure: BaseException | None = None
    try:
        if begin:
            _send_begin(driver, pipeline)
        yield calls
    except BaseException as error:  # noqa: BLE001  # raised below
        failure = _unless_freed(driver, error)
    fetch = getattr(pipeline, "_fetch_gen", None)
    if fetch is not None:
        pipeline._fetch_gen = partial(_fetch_after_sync, pipeline, fetch)  # noqa: SLF001  # see above
    try:
        yield [leave]
    except BaseException as error:  # noqa: BLE001  # raised below
        failure = _error_to_raise(failure, _unless_freed(driver, error))
    finally:
        if fetch is not None:
            del pipeline._fetch_gen  # noqa: SLF001  # a program may have the pipeline open
    if failure is not None:
        if driver.pgconn.pipeline_status != before:
            driver.pgconn.finish()  # interrupted between two answers: it is of no use
        raise failure


def _bounds(block: Any) -> tuple[Call, Call]:
    """Return what begins and what ends a block of psycopg's, in which it waits for no answer."""
    if hasattr(block, "__aenter__"):
        return block.__aenter__, partial(block.__aexit__, None, None, None)
    return block.__enter__, partial(block.__exit__, None, None, None)


def _send_begin(driver: Any, pipeline: Any) -> None:
    """Send BEGIN, so that psycopg does not send its own, for whose answer it would wait."""
    queue = getattr(pipeline, "result_queue", None)
    if queue is not None and starts_transaction(driver):
        begin = _begin(driver.isolation_level, driver.read_only, driver.deferrable)
        driver.pgconn.send_query_params(begin, None)
        queue.append(None)


def _fetch_after_sync(pipeline: Any, fetch: Any, *, flush: bool) -> Generator[Any, Any, None]:
    """Fetch the answers of a pipeline that ends, with no Flush behind its Sync."""
    if flush:
        yield from send(pipeline.pgconn)  # what the socket did not take at once
    yield from fetch(flush=False)


def _unless_freed(driver: Any, error: BaseException) -> BaseException:
    """Return the error, unless Python frees a run that was interrupted: nobody waits for the answers.

    :raises GeneratorExit: so it is, and the connection is closed.
    """
    if isinstance(error, GeneratorExit):
        driver.pgconn.finish()
        raise error
    return error


def _error_to_raise(failure: BaseException | None, later: BaseException) -> BaseException:
    """Return one of two errors: an interruption, else the first."""
    # psycopg leaves its pipeline after an interruption, and may fail at that.
    for error in (failure, later, later.__context__):
        if error is not None and not isinstance(error, Exception):
            return error
    return failure or later


def starts_transaction(driver: Any) -> bool:
    """Return whether the driver would send BEGIN in front of the next statement."""
    return not driver.autocommit and driver.pgconn.transaction_status == TransactionStatus.IDLE


# Threads: a cache of a function that has one answer.
@lru_cache
def _begin(level: IsolationLevel | None, read_only: bool | None, deferrable: bool | None) -> bytes:
    """Return the BEGIN that the driver would send, by what is documented to be in it."""
    words = ["BEGIN"]
    if level is not None:
        words += ["ISOLATION LEVEL", level.name.replace("_", " ")]
    if read_only is not None:
        words.append("READ ONLY" if read_only else "READ WRITE")
    if deferrable is not None:
        words.append("DEFERRABLE" if deferrable else "NOT DEFERRABLE")
    return " ".join(words).encode()


class CursorInterceptor:
    """Executes the statements of a connection in place of the driver's own cursors."""

    _factory: Any = None
    _server_factory: Any = None

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.driver: Any = connection.connection.driver_connection

    def cursor(self) -> Any:
        """Return a cursor of the driver's own."""
        return self._factory(self.driver)

    def execute(
        self, cursor: InterceptedCursor, query: Any, params: Any, options: Any
    ) -> Steps | None:
        """Return the steps that execute one statement; None where there are none."""
        return self.steps(partial(cursor.own.execute, query, params, **options))

    def executemany(
        self, cursor: InterceptedCursor, query: Any, rows: Any, options: Any
    ) -> Steps | None:
        """Return the steps that execute one statement with many rows; None where there are none."""
        return self._send_many(partial(cursor.own.executemany, query, rows, **options))

    def _send_many(self, call: Call) -> Steps:
        yield from self.before_other()
        yield from send_in_pipeline(self.driver, [call], begin=False)

    def steps(self, call: Call) -> Steps:
        """Make one call of the driver's."""
        yield [call]

    def before_other(self) -> Steps:
        """Prepare for what is neither ``execute()`` nor ``executemany()``: COPY, ``stream()``."""
        yield from ()

    def install(self) -> None:
        """Intercept every cursor that the connection makes from now on."""
        driver, interceptor = self.driver, ref(self)
        # A connection in its pool must not keep the interceptor alive.
        self._factory, self._server_factory = driver.cursor_factory, driver.server_cursor_factory
        is_async = self.connection.dialect.is_async
        intercepted = AsyncInterceptedCursor if is_async else InterceptedCursor
        driver.cursor_factory = partial(_make_cursor, interceptor, intercepted, self._factory)
        driver.server_cursor_factory = partial(
            _make_cursor, interceptor, intercepted, self._server_factory
        )

    def uninstall(self) -> None:
        """Give the connection the driver's own cursors again."""
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
    """Make a cursor of the driver's, intercepted."""
    interceptor = reference()
    if interceptor is None:
        return factory(driver, *args, **options)
    return intercepted(partial(factory, driver, *args, **options), interceptor)


_OF_INTERCEPTED: Final = frozenset({"own", "expected"})


class InterceptedCursor:
    """Replaces a cursor of the driver, and makes that, as ``own``, when it is used.

    :ivar expected: the number of rows that a statement that was not sent yet is sure to find.
    """

    own: Any
    interceptor: CursorInterceptor
    expected: int | None

    def __init__(self, make: Callable[[], Any], interceptor: CursorInterceptor) -> None:
        # Past __setattr__(), for each statement has a cursor.
        vars(self).update(_make=make, interceptor=interceptor, expected=None)

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        steps = self.interceptor.execute(self, query, params, options)
        if steps is not None:
            run_sync(steps)
        return self

    def executemany(self, query: Any, params_seq: Any, **options: Any) -> Any:
        steps = self.interceptor.executemany(self, query, params_seq, options)
        if steps is not None:
            run_sync(steps)

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
        run_sync(self.interceptor.before_other())
        with self.own.copy(*args, **options) as copy:
            yield copy

    def stream(self, *args: Any, **options: Any) -> Iterator[Any]:
        run_sync(self.interceptor.before_other())
        yield from self.own.stream(*args, **options)

    def __getattr__(self, name: str) -> Any:
        if name == "own":
            own = vars(self)["own"] = vars(self)["_make"]()
            return own
        return getattr(self.own, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # row_factory, format, arraysize: what the driver's cursor looks at.
        target = self if name in _OF_INTERCEPTED else self.own
        object.__setattr__(target, name, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.own)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.own.close()


class AsyncInterceptedCursor(InterceptedCursor):
    """Replaces a cursor of the driver under asyncio."""

    async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        steps = self.interceptor.execute(self, query, params, options)
        if steps is not None:
            await run_async(steps)
        return self

    async def executemany(self, query: Any, params_seq: Any, **options: Any) -> Any:
        steps = self.interceptor.executemany(self, query, params_seq, options)
        if steps is not None:
            await run_async(steps)

    @asynccontextmanager
    async def copy(self, *args: Any, **options: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        await run_async(self.interceptor.before_other())
        async with self.own.copy(*args, **options) as copy:
            yield copy

    async def stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        await run_async(self.interceptor.before_other())
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
