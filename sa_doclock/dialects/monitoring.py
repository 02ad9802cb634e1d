"""Role 4 of a dialect, which it may leave out: the holders of locks, and their waiters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from sqlalchemy import Connection, Table

from ..lock_info import LockConnection, Wait
from .error_codes import NativeCode


class LockMonitoring(ABC):
    """The locks of a server: asked over a connection of its own, on which nothing may wait."""

    privilege_errors: ClassVar[Mapping[NativeCode, str]] = {}
    """Errors of an account that may not read this, with the privilege that it needs."""

    @abstractmethod
    def connection_id(self, connection: Connection) -> int | None:
        """Return the server's id of this connection.

        The method goes past SQLAlchemy, whose session takes no statement any more by now.
        """

    @abstractmethod
    def holders(
        self,
        connection: Connection,
        header: Table,
        keys: Sequence[tuple[Any, ...]],
        *,
        shared: bool,
    ) -> Mapping[int, bool]:
        """Return the connections that hold these rows, or else those that may hold them.

        :param keys: of the rows; empty where they are not known.
        :param shared: whether a shared lock was asked for, which other readers do not block.
        :returns: by the ids of the connections, whether it is certain.
        """

    @abstractmethod
    def waits(self, connection: Connection) -> Iterable[Wait]:
        """Return who waits for a lock, and for whom."""

    @abstractmethod
    def describe(
        self, connection: Connection, ids: Collection[int]
    ) -> Mapping[int, LockConnection]:
        """Return what the server knows of these connections, by their ids."""


def elapsed_seconds(found: Any) -> float | None:
    """Return a time that has passed, by a clock that may have been set back meanwhile."""
    return None if found is None else max(0.0, float(found))
