"""The holders of locks, and their waiters, as a server reports them; a dialect may omit it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import Connection, Table

from ..keys import Identity

if TYPE_CHECKING:
    from ..wait_info import LockConnection, Wait


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
    def waits(self, connection: Connection) -> Iterable[Wait]:
        """Return who waits for a lock, and for whom."""

    @abstractmethod
    def describe(
        self, connection: Connection, ids: Collection[int]
    ) -> Mapping[int, LockConnection]:
        """Return the server's information about these connections, by their ids."""


def describe_connections(
    monitoring: LockMonitoring, connection: Connection, ids: Collection[int]
) -> Mapping[int, LockConnection]:
    """Describe these connections; for one that is gone, only the id is known."""
    from ..wait_info import LockConnection  # noqa: PLC0415  # few programs ask

    known = monitoring.describe(connection, ids) if ids else {}
    return {number: known.get(number) or LockConnection(number) for number in ids}


def connections_by_id(
    rows: Iterable[Sequence[Any]], states: Mapping[str, str]
) -> Mapping[int, LockConnection]:
    """Return the connections of these rows, and the prepared transactions as connection 0.

    :param rows: id, user, application, state, seconds of the transaction, statement, host.
    :param states: our words for the server's states.
    """
    from ..wait_info import PREPARED, LockConnection  # noqa: PLC0415  # few programs ask

    found = {0: LockConnection(0, state=PREPARED)}
    for number, user, application, state, seconds, statement, host in rows:
        found[number] = LockConnection(
            number,
            user,
            application or None,
            states.get(state, state),
            elapsed_seconds(seconds),
            statement or None,
            host=host or None,
        )
    return found


def elapsed_seconds(found: Any) -> float | None:
    """Return an elapsed time, even if the clock was set back meanwhile."""
    return None if found is None else max(0.0, float(found))
