"""Role 3 of a dialect: the state of a connection, and how its transaction ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any, ClassVar, Final

from sqlalchemy import Connection, event, text
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError

from ..errors import LockNotSupported
from .cluster import Cluster
from .compatible_servers import FoundServer
from .error_codes import ErrorCodes
from .side_connection import side_connection
from .transaction_lifecycle import TransactionLifecycle
from .transaction_marks import TransactionMarks
from .transaction_status import TransactionStatus

AUTOCOMMIT = (
    "the connection is in AUTOCOMMIT, where a lock ends with its statement; "
    "use an engine or session with a transactional isolation level"
)

_NO_OTHER_CONNECTION = (
    "the server has to be asked once, over another connection than the one that was lent, and that "
    "cannot be made; take the first lock of the engine in a session of the engine"
)

ROLLED_BACK_LATER: Final = "sa_doclock_rolled_back_later"
"""An execution option of a Connection whose transaction a test rolls back at its end: sessions that
join it count as having opened a transaction of their own.  Set by testing.rollback_session()."""


def is_rolled_back_later(connection: Connection) -> bool:
    """Return whether a test rolls the connection's transaction back at its end."""
    return ROLLED_BACK_LATER in connection.get_execution_options()


class ConnectionState:
    """The server, and the state of its connections."""

    asks_server: ClassVar[bool] = True
    """The answers depend on the server's version or default isolation level."""

    errors: ErrorCodes
    """The error numbers of the server."""

    status: TransactionStatus = TransactionStatus()
    """The driver's word about its transaction."""

    lifecycle: TransactionLifecycle = TransactionLifecycle()
    """What is done at the begin, the savepoints and the end of a transaction."""

    marks: TransactionMarks | None = None
    """The marks of transactions; None: the database has none."""

    cluster: Cluster | None = None
    """The cluster that the server is a node of; None: of none; set by ``note_server()``."""

    compatible: FoundServer | None = None
    """The product that answers in place of the one that the dialect is for; set by ``note_server()``."""

    autocommit_by_default: bool = False
    """The engine was made with ``isolation_level="AUTOCOMMIT"``; set by the registry."""

    server_version: tuple[Any, ...] | None
    """The version of the server; None before the first connection."""

    def __init__(self, dialect: Dialect) -> None:
        # Not the dialect itself: the strategy is kept for as long as the dialect lives.
        self.server_version = dialect.server_version_info
        self.plans: dict[Any, Any] = {}
        """The plans of locks on this engine; the package transaction makes them."""
        self.findings: dict[Any, Any] = {}
        """Facts about this server that other packages found out once, by keys of their own."""

    @contextmanager
    def asking(self, connection: Connection) -> Iterator[Connection]:
        """Yield the connection for a question about the server or a table.

        All questions that the library asks by itself are asked in such a block, so that the program
        finds this connection and its transaction as if nothing had been sent.  Where
        ``asked_in_place()`` returns a block, what is asked goes past SQLAlchemy, by ask_driver().

        :raises LockNotSupported: another connection is needed for it, and cannot be made.
        """
        in_place = self.asked_in_place(connection)
        if in_place is None:
            with other_connection(connection) as other:
                yield other
        else:
            with in_place:
                yield connection

    def asked_in_place(self, connection: Connection) -> AbstractContextManager[None] | None:
        """Return a block in which a question on this very connection leaves nothing behind.

        Nothing: no transaction that was not there, none ended, no snapshot, no setting of the next
        transaction used up.  It is not executed by SQLAlchemy.  None: there is no such block, and
        the question goes over a connection of its own.
        """
        return None

    def note_server(self, connection: Connection) -> None:
        """Remember the settings of the server; called once, with a connection as of ``asking()``."""

    def check_autocommit(self, connection: Connection) -> None:
        """Raise LockNotSupported if every statement is a transaction of its own."""
        if getattr(connection.connection.dbapi_connection, "autocommit", False):
            raise LockNotSupported(AUTOCOMMIT)


@contextmanager
def other_connection(connection: Connection) -> Iterator[Connection]:
    """Connect as the engine of this connection does, beside its pool.

    :raises LockNotSupported: that fails.
    """
    with ExitStack() as stack:
        try:
            other = stack.enter_context(side_connection(connection.engine, {}))
        except Exception as error:
            raise LockNotSupported(f"{_NO_OTHER_CONNECTION}: {error}") from error
        yield other


def ask_driver(
    connection: Connection, statement: str, **parameters: Any
) -> Sequence[Sequence[Any]]:
    """Return the rows of a statement, sent past SQLAlchemy.

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
    driver_error: Any = connection.dialect.loaded_dbapi.Error
    try:
        with closing(connection.connection.cursor()) as cursor:
            cursor.execute(statement, *values)
            rows: Sequence[Sequence[Any]] = cursor.fetchall()
            return rows
    except driver_error as error:
        raise wrapped_error(error, connection.dialect, statement) from error


def wrapped_error(error: Any, dialect: Dialect, statement: str) -> DBAPIError:
    """Return the error of the driver as SQLAlchemy's, where SQLAlchemy does not wrap it itself."""
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
    :param write: the statement that sets a value, in front of the value.
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
    """Rewrite the statements of this block that have one of these words in them.

    The listener is the connection's own and goes with the block: no other statement pays for it.

    :param rewrite: is given the text and the parameters as the driver will get them.
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
