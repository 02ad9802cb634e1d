"""The connections that hold a lock or wait for one, as a server reports them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .keys import key_text, printable, short_text

_NUMBERS = re.compile(r"-?\d+(?:, -?\d+)*")

KEY_MARK = "sa_doclock key:"
"""The beginning of a comment, in the statement that waits for a named lock, with its key."""

PREPARED = "prepared transaction"


@dataclass(frozen=True)
class LockConnection:
    """A connection that holds a lock or waits for one, as the server described it.

    None: the server does not know the value, or does not show it to this account.

    :ivar connection_id: the server's id of it: ``pg_backend_pid()``, ``CONNECTION_ID()``,
        ``@@SPID``. 0 is a prepared transaction, which no connection has any more.
    :ivar user: the account with which it logged in.
    :ivar application: the name that the program gave itself: ``application_name`` on PostgreSQL,
        ``program_name`` on MySQL and SQL Server.  MariaDB keeps none.
    :ivar state: ``"active"`` or ``"idle in transaction"``, in the same words on every database;
        anything else is in the server's words.
    :ivar transaction_seconds: seconds for which its transaction has been open.
    :ivar statement: the current statement, or else the last one.  The server may truncate it, and
        it includes the driver's additions, even values of parameters.
    :ivar certain: False if the server does not say who holds this very row: this connection holds
        locks on its table, or on some table of the server.
    :ivar host: the address or name of its machine; None also for a connection of PostgreSQL over a
        socket of its own machine.
    """

    connection_id: int
    user: str | None = None
    application: str | None = None
    state: str | None = None
    transaction_seconds: float | None = None
    statement: str | None = None
    certain: bool = True
    host: str | None = None

    def __str__(self) -> str:
        """Return all that is known of it, except its statement."""
        age = self.transaction_seconds
        details = (
            self.user and f"user {self.user}",
            self.application and f"application {self.application!r}",
            self.host and f"host {self.host}",
            self.state,
            None if age is None else f"its transaction open for {age:.1f} s",
        )
        known = ", ".join(filter(None, details))
        return f"connection {self.connection_id}" + (f" ({printable(known)})" if known else "")


_SHOWN = 200


def short_statement(connection: LockConnection) -> str | None:
    """Return its statement on one line, truncated if it is long, or None."""
    if connection.statement is None:
        return None
    statement = printable(" ".join(connection.statement.split()))
    if len(statement) <= _SHOWN:
        return statement
    return f"{statement[:_SHOWN]}... ({len(connection.statement)} characters)"


@dataclass(frozen=True)
class LockWait:
    """One connection waits for another.

    A connection that waits for several at once, such as the readers of a row, is in several of
    these. In a queue, a connection is listed with the holder and with the last one in front of it,
    not with all of them; if several hold the lock, only the first of the queue is listed with each
    of them.

    :ivar waiter: the waiting connection.
    :ivar blocker: the connection that must go first; it may wait itself.
    :ivar root_blocker: the connection that does not wait itself and blocks all of them.  In a wait
        cycle, which the server will soon end as a deadlock, there is none, and it is the
        ``blocker``.
    :ivar table: the table, with its schema if the server adds it; None if it is not a table.
    :ivar key: the primary key of the row, as the server writes it; or the key of a named lock that
        this process has asked for too, and otherwise the server's name for it.
    :ivar seconds: seconds that it has waited.
    """

    waiter: LockConnection
    blocker: LockConnection
    root_blocker: LockConnection
    table: str | None
    key: str | None
    seconds: float | None

    @property
    def lock(self) -> str:
        """The lock in words: ``orders 42``, ``table orders``."""
        if self.table is None:
            return "a lock" if self.key is None else f"named lock {key_text(self.key)}"
        table = printable(self.table)
        if self.key is None:
            return f"table {table}"
        numbers = _NUMBERS.fullmatch(self.key)
        return f"{table} {short_text(self.key) if numbers else key_text(self.key)}"

    def __str__(self) -> str:
        """Return a line for a log: who waits for whom, with the statement of the root."""
        waited = "waits" if self.seconds is None else f"has waited {self.seconds:.1f} s"
        text = f"{self.lock}: {self.waiter} {waited} for {self.blocker}"
        if self.root_blocker != self.blocker:
            text += f"; the root is {self.root_blocker}"
        statement = short_statement(self.root_blocker)
        return text if statement is None else f"{text}: {statement}"
