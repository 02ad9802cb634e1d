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
from .error_codes import ErrorCodes, NativeCode
from .side_connection import side_connection

AUTOCOMMIT = (
    "the connection is in AUTOCOMMIT, where a lock ends with its statement; "
    "use an engine or session with a transactional isolation level"
)

_NO_OTHER_CONNECTION = (
    "the server has to be asked once, over another connection than the one that was lent, and that "
    "cannot be made; take the first lock of the engine in a session of the engine"
)

UNMARKED: Final = object()
"""The answer of ``mark_transaction()`` where the open transaction cannot be marked now."""

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

    reports_idle: ClassVar[bool] = False
    """Some driver sends a ROLLBACK also where no transaction is open, and ``is_idle()`` can tell."""

    error_ends_unseen: ClassVar[bool] = False
    """An error may end the transaction, with no number of its own that says so: the transaction is
    marked by its first lock."""

    mark_is_savepoint: ClassVar[bool] = False
    """The mark of a transaction is a savepoint: it is used up by ``has_mark()``, and a savepoint of the
    program is neither set nor ended while there is one."""

    lock_needs_transaction: ClassVar[bool] = False
    """A lock that was granted while ``in_transaction()`` is False has ended with its statement."""

    notes_begin: ClassVar[bool] = False
    """``note_begin()`` is called before any after_begin listener of the program."""

    cluster: Cluster | None = None
    """The cluster that the server is a node of; None: of none; set by ``note_server()``."""

    compatible: FoundServer | None = None
    """The product that answers in place of the one that the dialect is for; set by ``note_server()``."""

    begins_at_once: bool = False
    """The begin of a transaction is sent when it begins here, by ``begin_now()``, because the server
    goes by its time; set by ``note_server()``."""

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

    def begin_now(self, connection: Connection) -> None:
        """Have the server begin the transaction now, in which nothing was sent yet."""

    def note_begin(self, connection: Connection) -> None:
        """Note the state of a connection whose transaction begins now; where ``notes_begin``."""

    def before_savepoint(self, connection: Connection) -> None:
        """Send what a SAVEPOINT needs in front of it."""

    def commit_failed(self, connection: Connection) -> None:
        """End the transaction that a failed COMMIT has left open, which SQLAlchemy does not."""

    def mark_transaction(self, connection: Connection) -> object:
        """Return a mark of the open transaction, by which ``has_mark()`` knows it again.

        Called in front of a statement that nobody here has built, where locks are held.  None: the
        database has no marks.  UNMARKED: this transaction cannot be marked now; where the
        statement succeeds, the locks count as lost.
        """
        return None

    def has_mark(self, connection: Connection, mark: object) -> bool:
        """Return whether the open transaction is the one with this mark.

        Asked before the next flush, lock or commit.  True too
        where nothing can be done in the transaction any more: the next statement tells why.
        """
        return self.mark_transaction(connection) == mark

    def has_open_transaction(self, connection: Connection) -> bool | None:
        """Return whether a transaction is open; the server may be asked; None: nobody can tell."""
        return self.in_transaction(connection)

    def interrupted(self, connection: Connection, cursor: Any) -> None:
        """End what closing the connection, which follows, would leave open."""

    # The connection's own word about its transaction, which costs nothing, and which may miss that one
    # has ended and another begun.  The ledger is compared with it before a lock, a flush and a commit,
    # after each error, and after each statement on a Connection that the program has in hand.  False: the transaction has ended, and its locks are gone; then the
    # session refuses to write.  None: nobody can tell.  Called only where a lock or a savepoint has
    # been sent, so that there must be a transaction.

    def in_transaction(self, connection: Connection) -> bool | None:
        """Return whether the driver knows a transaction to be open; nothing is sent.

        The answer must be right at any time.  What is known after a statement or an error alone
        belongs into the two methods below.
        """
        return None

    def in_transaction_after(
        self, connection: Connection, cursor: Any, statement: str
    ) -> bool | None:
        """Return the same just after this statement has succeeded; nothing is sent.

        Override it where the driver keeps the status of some answers only.
        """
        return self.in_transaction(connection)

    def in_transaction_after_error(
        self, connection: Connection, statement: str, code: NativeCode | None
    ) -> bool | None:
        """Return the same just after this statement has failed; here the server may be asked.

        Of statements that SQLAlchemy has built, ``in_transaction()`` is asked instead.  A question
        goes over ``connection.connection.cursor()``, so that its error is none of the session; an
        error that comes out of here is taken for None.  Codes in ``rolls_back_transaction`` are not
        asked about.
        """
        return self.in_transaction(connection)

    def is_aborted(self, connection: Connection) -> bool | None:
        """Return whether an error has aborted the transaction; None: the driver cannot tell."""
        return None if self.errors.aborts_on_error else False

    def is_idle(self, dbapi_connection: Any) -> bool:
        """Return whether the server's answer to COMMIT or ROLLBACK says: no transaction is open.

        False: it does not, or the driver cannot tell.
        """
        return False


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
