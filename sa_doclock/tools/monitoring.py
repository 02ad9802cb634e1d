"""lock_waits(): the current waits for locks on a server, reduced to a few pairs per waiter."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ..dialects import (
    LockFeature,
    code_of,
    describe_connections,
    elapsed_seconds,
    product_of,
    side_connection,
    strategies,
    strategy_class,
)
from ..dialects.base import LockStrategy
from ..errors import LockNotSupported
from ..wait_info import LockWait

_Request = tuple[int, "str | None", "str | None"]  # of a waiter, or of holders; table and key


class Wait(NamedTuple):
    """A wait: connections by their ids."""

    waiter: int
    blocker: int
    table: str | None = None
    key: str | None = None
    seconds: float | None = None


class WaitGraph:
    """The waiting connections of a server, and their blockers.

    A server lists a waiter with the holders of its lock and with all that wait in front of it: for
    a queue of n, n * n / 2 pairs.  They are read one by one, each costs one bit, and a few are
    kept.

    Connections are numbered from 0 here, and a set of connections is an integer with their bits.

    :param found: the rows of ``LockMonitoring.waits()``.
    """

    def __init__(self, found: Iterable[Sequence[Any]]) -> None:
        self._numbers: dict[int, int] = {}
        self._blockers_of: dict[_Request, int] = {}
        self._seconds: dict[_Request, float | None] = {}
        for waiter, blocker, table, key, seconds in found:
            request = (self._number(waiter), table, key)
            bit = 1 << self._number(blocker)
            self._blockers_of[request] = self._blockers_of.get(request, 0) | bit
            self._seconds.setdefault(request, elapsed_seconds(seconds))
        self._ids = list(self._numbers)
        self._blockers = [0] * len(self._ids)
        for (waiter, _, _), blockers in self._blockers_of.items():
            self._blockers[waiter] |= blockers
        self._in_front = [0] * len(self._ids)  # the blockers that are nearer to the root
        self._roots: list[int | None] = [None] * len(self._ids)
        self._ranks = {number: rank for rank, number in enumerate(self._walk())}

    def _number(self, connection_id: int) -> int:
        return self._numbers.setdefault(connection_id, len(self._numbers))

    @property
    def connections(self) -> Collection[int]:
        """The ids of all waiters and blockers."""
        return self._ids

    def _walk(self) -> Iterator[int]:
        """Yield the connections that do not wait, then their waiters, and so on, noting their roots.

        Connections without a root form a cycle, or wait for it: they get a root within it.
        """
        waiters: list[int] = [0] * len(self._ids)
        for waiter, blockers in enumerate(self._blockers):
            for blocker in _members(blockers):
                waiters[blocker] |= 1 << waiter
        roots = [number for number, blockers in enumerate(self._blockers) if not blockers]
        queue, reached, walked = deque(roots), 0, 0
        for root in roots:
            self._roots[root] = root
            reached |= 1 << root
        everyone = (1 << len(self._ids)) - 1
        while walked != everyone:
            if not queue:
                queue.append(self._in_circle(everyone & ~reached))
                reached |= 1 << queue[0]
            number = queue.popleft()
            self._in_front[number] = self._blockers[number] & walked
            yield number
            walked |= 1 << number
            for waiter in _members(waiters[number] & ~reached):
                self._roots[waiter] = self._roots[number]
                queue.append(waiter)
            reached |= waiters[number]

    def _in_circle(self, left: int) -> int:
        """Return a connection of a wait cycle, from connections that have no other root."""
        seen, number = 0, next(_members(left))
        while not seen >> number & 1:
            seen |= 1 << number
            number = next(_members(self._blockers[number]))
        return number

    def waits(self) -> Iterator[tuple[Wait, int]]:
        """Yield the waits to be shown, each with the id of its root.

        Two kinds of a waiter's blockers are kept: blockers that wait for no other blocker, which are
        the holders; and those for which no other blocker waits, such as the last one of the queue
        in front of it.  If several connections hold a lock with many waiters, the first waiter has
        a wait for each of them, and the others have one for the first waiter.

        In a wait cycle, the blocker stands for the root.
        """
        first_of: dict[_Request, int] = {}
        for request in sorted(self._blockers_of, key=lambda key: self._ranks[key[0]]):
            waiter, table, key = request
            blockers = self._blockers_of[request]
            holders, nearest = self._ends(blockers)
            first = first_of.setdefault((holders, table, key), waiter)
            has_several = holders & (holders - 1)
            if has_several and first != waiter and blockers >> first & 1:
                holders = 1 << first
            for blocker in _members(holders | nearest):
                root = self._roots[blocker]
                pair = self._ids[waiter], self._ids[blocker]
                wait = Wait(*pair, table, key, self._seconds[request])
                yield wait, self._ids[blocker if root is None else root]

    def _ends(self, blockers: int) -> tuple[int, int]:
        """Return the connections that wait for no other of these, and those for which no other waits."""
        holders = waited_for = 0
        for number in _members(blockers):
            if not self._in_front[number] & blockers:
                holders |= 1 << number
            waited_for |= self._blockers[number]
        return holders, blockers & ~waited_for


def _members(numbers: int) -> Iterator[int]:
    while numbers:
        lowest = numbers & -numbers
        yield lowest.bit_length() - 1
        numbers ^= lowest


def lock_waits(bind: Engine | Connection) -> list[LockWait]:
    """Return the waits for locks at this moment, on the whole server, not only of this program.

    It asks over a new connection, made as the engine makes its own, which needs no place in the
    pool and waits for no lock.

    A queue of 200 for one lock is about 400 waits: of each waiter for the holder, and for the
    waiter in front of it.

    Example::

        for wait in lock_waits(engine):
            print(wait)

    :returns: the longest waits first; an empty list if there are none.  MariaDB answers from a copy
        that can be older than 0.1 s if others ask all the time.
    :raises LockNotSupported: SQLite, which has no server; a product that locks no rows or has no
        such query; or the account lacks a privilege, which the message names.
    :raises TypeError: neither an Engine nor a Connection; see :func:`async_lock_waits`.
    """
    if not isinstance(bind, (Engine, Connection)):
        raise TypeError(f"lock_waits() needs an Engine or a Connection, not {bind!r}")
    known = strategy_class(bind.dialect)
    if known is None or known.monitoring is None:
        raise LockNotSupported(
            f"lock_waits() is not supported on {product_of(bind.dialect)}: it has no server that "
            "lists lock waits"
        )
    with side_connection(bind.engine, {}) as connection:
        strategy = strategies.get(bind.dialect) or _strategy_over(connection)
        monitoring = strategy.monitoring
        assert monitoring is not None
        try:
            other = strategy.compatible
            if other is not None and LockFeature.FOR_UPDATE in other.refused:
                raise LockNotSupported(
                    f"lock_waits() does not support {other.product.name}: no transaction waits for a "
                    "row there"
                )
            graph = WaitGraph(monitoring.waits(connection))
            described = describe_connections(monitoring, connection, graph.connections)
        except DBAPIError as error:
            needed = _missing(strategy, error)
            if needed is None:
                raise
            raise LockNotSupported(f"lock_waits() {needed}") from error
    waits = [
        LockWait(described[waiter], described[blocker], described[root], table, key, seconds)
        for (waiter, blocker, table, key, seconds), root in graph.waits()
    ]
    return sorted(waits, key=lambda wait: -(wait.seconds or 0))


def _missing(strategy: LockStrategy, error: DBAPIError) -> str | None:
    other = strategy.compatible
    if other is not None and not error.connection_invalidated:
        return f"does not support {other.product.name}, which refuses its query"
    needed = missing_privilege(strategy, error)
    return None if needed is None else f"on {strategy.name}: {needed}"


def _strategy_over(connection: Connection) -> LockStrategy:
    """Return a strategy for one call on this connection.

    It is not kept: the connection may lack the engine's isolation level.
    """
    found = strategy_class(connection.dialect)  # only a connection tells MariaDB from MySQL
    assert found is not None
    strategy = found(connection.dialect)
    strategy.note_server(connection)
    return strategy


def missing_privilege(strategy: LockStrategy, error: DBAPIError) -> str | None:
    """Return what the account needs to see waits; None if the error is another."""
    return strategy.errors[code_of(strategy.errors, error)].monitoring or None
