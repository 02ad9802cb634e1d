"""Connections: questions to the server, settings, rewritten statements, and connections outside a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError

from ..errors import LockNotSupported
from ..interruptions import Interruptible

AUTOCOMMIT = (
    "the connection is in AUTOCOMMIT, where a lock ends with its statement. "
    "Use an engine or session with a transactional isolation level"
)

_NO_OTHER_CONNECTION = (
    "the first lock of an engine asks the server over a second connection, and connecting failed. "
    "Take the first lock in a session of the engine"
)

ROLLED_BACK_LATER: Final = "sa_doclock_rolled_back_later"
"""An execution option of a Connection whose transaction a test rolls back at its end: sessions that
join it count as having opened a transaction.  Set by testing.rollback_session().
"""


def is_rolled_back_later(connection: Connection) -> bool:
    """Return whether a test rolls back the connection's transaction at its end."""
    return ROLLED_BACK_LATER in connection.get_execution_options()


@contextmanager
def side_connection(engine: Engine, options: Mapping[str, Any]) -> Iterator[Connection]:
    """Connect as this engine does, but outside its pool, to ask about the server.

    Waiting sessions may have exhausted the pool.  A setting of this connection reaches no pool.

    :param options: execution options of the connection.
    """
    with side_engine(engine) as own, own.connect() as connection:
        yield connection.execution_options(**options)


@contextmanager
def side_engine(engine: Engine) -> Iterator[Engine]:
    """Create an engine that connects as this one does, with a separate pool, for this block."""
    own = _copy_of(engine)
    try:
        yield own
    finally:
        own.dispose()


def _copy_of(engine: Engine) -> Engine:
    arguments: dict[str, Any] = {
        "pool": engine.pool.recreate(),  # keeps creator, connect_args and listeners
        "module": engine.dialect.loaded_dbapi,
    }
    if not engine.dialect.is_async:
        return create_engine(engine.url, **arguments)
    # One URL may stand for two drivers.  Imported here, because it needs greenlet.
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

    return create_async_engine(engine.url, **arguments).sync_engine


@contextmanager
def other_connection(connection: Connection) -> Iterator[Connection]:
    """Connect as the engine of this connection does, outside its pool.

    :raises LockNotSupported: that fails.
    """
    with Interruptible(), ExitStack() as stack:
        try:
            other = stack.enter_context(side_connection(connection.engine, {}))
        except Exception as error:
            raise LockNotSupported(f"{_NO_OTHER_CONNECTION}: {error}") from error
        yield other


@contextmanager
def asked_here(
    connection: Connection, block: AbstractContextManager[object] | None = None
) -> Iterator[Connection]:
    """Ask on this connection itself, in this block; see ``LockStrategy.asking()``."""
    with Interruptible(connection), block or nullcontext():
        yield connection


def ask_driver(
    connection: Connection, statement: str, **parameters: Any
) -> Sequence[Sequence[Any]]:
    """Return the rows of a statement, executed on the driver.

    SQLAlchemy would begin a transaction on the Connection, and call the program's listeners.

    :param parameters: by their names in the statement, as ``:name``.
    :raises DBAPIError: as SQLAlchemy would raise it.
    """
    values: Sequence[Any] = ()
    if parameters:
        compiled: Any = text(statement).compile(dialect=connection.dialect)
        statement, bound = compiled.string, {**compiled.params, **parameters}
        names = compiled.positiontup if compiled.positional else None
        values = [bound if names is None else tuple(map(bound.__getitem__, names))]
    with driver_cursor(connection, statement) as cursor:
        cursor.execute(statement, *values)
        rows: Sequence[Sequence[Any]] = cursor.fetchall()
        return rows


@contextmanager
def driver_cursor(connection: Connection, statement: str) -> Iterator[Any]:
    """Return a block with a cursor of the driver, for a statement that bypasses SQLAlchemy.

    :raises DBAPIError: as SQLAlchemy would raise it.
    """
    driver_error: Any = connection.dialect.loaded_dbapi.Error
    try:
        with Interruptible(connection), closing(connection.connection.cursor()) as cursor:
            yield cursor
    except driver_error as error:
        raise wrapped_error(error, connection.dialect, statement) from error
    except ConnectionError as error:  # of the socket: pg8000 raises it unwrapped
        own = connection.dialect.loaded_dbapi.OperationalError(str(error))
        own.__traceback__ = error.__traceback__  # identifies it as the driver's
        raise wrapped_error(own, connection.dialect, statement) from error
    except Exception as error:
        # Raised by a signal handler or a codec: the state of the connection is unknown.
        if not (connection.closed or connection.invalidated):
            connection.invalidate(error)
        raise


def wrapped_error(error: Any, dialect: Dialect, statement: str) -> DBAPIError:
    """Return a driver's error as SQLAlchemy's, if SQLAlchemy does not wrap it itself."""
    wrapped: DBAPIError = DBAPIError.instance(
        statement,
        None,
        error,
        dialect.loaded_dbapi.Error,
        connection_invalidated=dialect.is_disconnect(error, None, None),
        dialect=dialect,
    )
    return wrapped


@contextmanager
def connection_setting(connection: Connection, read: str, write: str, value: int) -> Iterator[None]:
    """Set a setting of the connection for this block, and restore it whatever happens.

    :param read: the statement that returns the old value.
    :param write: the statement that sets a value, before the value.
    """
    old = connection.exec_driver_sql(read).scalar_one()
    try:
        connection.exec_driver_sql(f"{write} {value}")
        yield
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql(f"{write} {int(old)}")


@contextmanager
def rewritten_statements(
    connection: Connection, rewrite: Callable[[str, Any], str], *words: str
) -> Iterator[None]:
    """Rewrite the statements of this block that contain one of these words.

    The listener belongs to the connection and the block: no other statement pays for it.

    :param rewrite: gets the text and the parameters as the driver would.
    """

    def before_cursor_execute(
        _connection: Connection, _cursor: Any, statement: str, parameters: Any, *_: Any
    ) -> tuple[str, Any]:
        if any(word in statement for word in words):
            statement = rewrite(statement, parameters)
        return statement, parameters

    event.listen(connection, "before_cursor_execute", before_cursor_execute, retval=True)
    try:
        yield
    finally:
        event.remove(connection, "before_cursor_execute", before_cursor_execute)


def socket_descriptor(driver_connection: Any, *names: str) -> int | None:
    """Return the file descriptor of the socket that a driver keeps under one of these names.

    :param names: of a socket, of an object that has it as ``sock``, or of asyncio's transport or writer.
    """
    for name in names:
        holder: Any = getattr(driver_connection, name, None)
        if holder is not None:
            extra = getattr(holder, "get_extra_info", None)
            found = extra("socket") if extra is not None else getattr(holder, "sock", holder)
            return int(found.fileno())
    return None
