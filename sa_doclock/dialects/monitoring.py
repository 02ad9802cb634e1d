"""The holders of locks, and their waiters, as a server reports them; a dialect may omit it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from sqlalchemy import Connection, Table

from ..keys import Identity

if TYPE_CHECKING:
    from ..wait_info import LockConnection


class LockMonitoring(ABC):
    """The locks of a server: asked over a separate connection, on which nothing may wait."""

    seconds_between_looks: ClassVar[float] = 0.0
    """The server answers from a copy that it renews only after this time without a question."""

    @abstractmethod
    def connection_id(self, connection: Connection) -> int | None:
        """Return the server's id of this connection.

        It bypasses SQLAlchemy, whose session accepts no statement by now.
        """

    @abstractmethod
    def holders(
        self, connection: Connection, header: Table, keys: Sequence[Identity], *, shared: bool
    ) -> Mapping[int, bool]:
        """Return the connections that hold these rows, or else those that might.

        :param keys: of the rows; empty if unknown.
        :param shared: whether a shared lock was requested, which other readers do not block.
        :returns: by the ids of the connections, whether it is certain.
        """

    @abstractmethod
    def waits(self, connection: Connection) -> Iterable[Sequence[Any]]:
        """Return a row for each pair of a waiter and its blocker.

        Its columns are the ids of their connections, the table and key as in LockWait, and the seconds of
        the wait.
        """

    @abstractmethod
    def connections(self, connection: Connection, ids: Collection[int]) -> Iterable[Sequence[Any]]:
        """Return a row for each of these connections, or for more.

        Its columns are those of LockConnection as far as ``statement``, then the host and, if the server
        does not say who holds a row, False.  ``state`` may be the server's word.
        """


# The servers' words, for connections that hold or wait for a lock: MySQL, MariaDB; SQL Server.
_STATES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("Sleep", "sleeping"), "idle in transaction"),
    **dict.fromkeys(("Query", "Execute", "running", "suspended", "runnable"), "active"),
}


def describe_connections(
    monitoring: LockMonitoring, connection: Connection, ids: Collection[int]
) -> Mapping[int, LockConnection]:
    """Describe these connections; for one that is gone, only the id is known.

    Connection 0 is a prepared transaction.
    """
    from ..wait_info import PREPARED, LockConnection  # noqa: PLC0415  # few programs ask

    found = {number: LockConnection(number) for number in ids}
    if 0 in found:
        found[0] = LockConnection(0, state=PREPARED)
    for number, user, application, state, seconds, statement, host, *certain in (
        monitoring.connections(connection, sorted(ids)) if ids else ()
    ):
        if number in found:
            found[number] = LockConnection(
                number,
                user,
                application or None,
                _STATES.get(state, state),
                elapsed_seconds(seconds),
                statement or None,
                all(certain),
                host or None,
            )
    return found


def elapsed_seconds(found: Any) -> float | None:
    """Return an elapsed time, even if the clock was set back meanwhile."""
    return None if found is None else max(0.0, float(found))
