"""The two nodes of a cluster, as a test sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from lab.servers import Server
from tests.support.databases import Database
from tests.support.models import Line, Order

Seen = tuple[int, list[int]]

# A read waits until the node has applied what was committed on the other one before.
_CAUGHT_UP = {
    "mariadb": "SET SESSION wsrep_sync_wait = 15",
    "mysql": "SET SESSION group_replication_consistency = 'BEFORE'",
}


class Nodes:
    """A database on each of two servers, which have the same rows."""

    def __init__(self, servers: Sequence[Server]) -> None:
        """Describe a cluster that has been started."""
        self.first, self.second = (Database(one.name, one.url, one.version) for one in servers)

    def catch_up(self) -> None:
        """Return when each node has applied all that was committed on the other.

        What stood in the way of it has been ended by then.
        """
        for node in (self.first, self.second):
            self._read(node, sa.select(1))

    def seen(self) -> Seen:
        """Return order 1 as it is on both nodes now: its total, and the values of its lines.

        :raises AssertionError: the nodes are not of one mind.
        """
        on_first, on_second = (self._seen_on(node) for node in (self.first, self.second))
        assert on_first == on_second
        return on_first

    def dispose(self) -> None:
        """Dispose the engines of a test."""
        for node in (self.first, self.second):
            for engine in node._engines:
                engine.dispose()
            node._engines.clear()

    def close(self) -> None:
        """Drop the tables."""
        self.dispose()
        self.first.close()

    def of(self, engine: sa.Engine) -> Database:
        """Return the node of an engine."""
        return self.first if engine in self.first._engines else self.second

    def _seen_on(self, node: Database) -> Seen:
        totals = self._read(node, sa.select(Order.total).where(Order.id == 1))
        values = sa.select(Line.value).where(Line.order_id == 1).order_by(Line.id)
        return totals[0], self._read(node, values)

    def _read(self, node: Database, statement: sa.Select[Any]) -> list[Any]:
        with node.observer().connect() as connection:
            connection.exec_driver_sql(_CAUGHT_UP[node.name])
            return list(connection.scalars(statement))
