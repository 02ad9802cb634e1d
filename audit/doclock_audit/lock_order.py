"""``lock-order-cycle``: transactions lock the same rows, or rows of the same tables, in different orders.

No deadlock has to happen.  Each transaction of the run shows the orders in which it took locks.  A
cycle of these orders can deadlock concurrent transactions; with the same rows, it is certain.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, TypeVar

from . import cures
from .findings import AuditFinding
from .rows import Row, short_name
from .rules import Rule
from .transactions import RowLock, Transaction

_MOST_PAIRS: Final = 20_000  # pairs of rows remembered during the run
_ALL_PAIRS: Final = 8  # up to this many rows, examine all pairs; beyond it, only neighbours
_MOST_VISITED: Final = 300  # visited in the search for one cycle

T = TypeVar("T")


@dataclass(slots=True)
class _Order:
    held_at: str
    locked_at: str
    guards: frozenset[Row]  # rows locked before both, in every such transaction


class LockOrder(Rule):
    """Certain if transactions locked the same rows in both orders."""

    code = "lock-order-cycle"

    def __init__(self) -> None:
        super().__init__()
        self._after: OrderedDict[Row, dict[Row, _Order]] = OrderedDict()
        self._pairs = self._pairs_left_out = 0

    @property
    def left_out(self) -> int:
        return self.tally.left_out + self._pairs_left_out

    def locked(self, transaction: Transaction, row: Row, lock: RowLock) -> None:
        if (
            not transaction.locks
            or not lock.waits
            or transaction.has_gate
            or self.is_test(lock.place)
        ):
            return
        held = list(transaction.locks.items())
        first = 0 if len(held) < _ALL_PAIRS else len(held) - 1
        for position, (other, of_other) in enumerate(held[first:], first):
            if self.is_test(of_other.place):
                continue
            guards = frozenset(one for one, _ in held[: min(position, _ALL_PAIRS)])
            order = _Order(str(of_other.place), str(lock.place), guards)
            direction = _direction(other, row)
            if direction and not guards:
                of = "order", other.entity, row.entity, direction
                self.tally.add((*of, order.held_at, order.locked_at))
            if not transaction.has_file_lock:
                self._note_rows(other, row, order)

    def _note_rows(self, held: Row, row: Row, order: _Order) -> None:
        after = self._after.setdefault(held, {})
        known = after.get(row)
        if known is None:
            after[row] = order
            self._pairs += 1
            while self._pairs > _MOST_PAIRS:
                _, oldest = self._after.popitem(last=False)
                self._pairs -= len(oldest)
                self._pairs_left_out += len(oldest)
        elif known.guards <= order.guards:
            return
        else:
            known.guards &= order.guards
        way_back = _way(self._after, row, held, _MOST_VISITED)
        if way_back is not None and held in self._after:  # otherwise held is gone
            self._note_cycle(way_back)

    def _note_cycle(self, rows: Sequence[Row]) -> None:
        first = rows.index(min(rows, key=repr))
        cycle = [*rows[first:], *rows[:first]]
        orders = [self._after[held][row] for held, row in _steps(cycle)]
        if frozenset.intersection(*(order.guards for order in orders)):
            return  # each transaction first locks a common row
        entities = "|".join(row.entity for row in cycle)
        places = "|".join(place for one in orders for place in (one.held_at, one.locked_at))
        self.tally.add(("cycle", entities, places))

    def findings(self) -> Iterator[AuditFinding]:
        """Yield the cycles of rows, then the cycles of classes that contain no cycle of rows."""
        shown = set()  # the classes of reported cycles
        orders: dict[tuple[str, str, str], tuple[tuple[str, str], int]] = {}
        for (kind, *key), count in self.tally:
            if kind == "cycle":
                entities = key[0].split("|")
                shown.add(frozenset(entities))
                yield self._judge(entities, key[1].split("|"), count, certain=True)
            else:  # the places where the pair was first seen
                held, row, direction, *(held_at, locked_at) = key
                known, times = orders.get((held, row, direction), ((held_at, locked_at), 0))
                orders[held, row, direction] = known, times + count
        for entity in {held for held, row, _ in orders if held == row}:
            both = [orders.get((entity, entity, one)) for one in ("ascending", "descending")]
            if all(both) and frozenset({entity}) not in shown:
                (up, times_up), (down, times_down) = filter(None, both)
                times = times_up + times_down
                yield self._judge([entity] * 2, [*up, *down], times, certain=False)
        for cycle in _cycles([(held, row) for held, row, _ in orders if held != row]):
            if frozenset(cycle) not in shown:
                shown.add(frozenset(cycle))
                found = [orders[one, other, "between"] for one, other in _steps(cycle)]
                places = [place for both, _ in found for place in both]
                times = sum(count for _, count in found)
                yield self._judge(cycle, places, times, certain=False)

    def _judge(
        self, entities: Sequence[str], places: Sequence[str], count: int, *, certain: bool
    ) -> AuditFinding:
        names = [short_name(entity) for entity in entities]
        steps = [
            f"{held} at {places[2 * index]} and then {row} at {places[2 * index + 1]}"
            for index, (held, row) in enumerate(_steps(names))
        ]
        what = "the same rows" if certain else "rows of these classes"
        message = f"transactions lock {what} in different orders: " + "; ".join(steps)
        cure = cures.lock_order(names)
        return self._finding(certain, message, tuple(places), cure, count)


def _direction(held: Row, row: Row) -> str:
    if held.entity != row.entity:
        return "between"
    try:
        return "ascending" if held.key < row.key else "descending"
    except TypeError:
        return ""  # keys without an order


def _steps(cycle: Sequence[T]) -> Iterable[tuple[T, T]]:
    return zip(cycle, [*cycle[1:], cycle[0]], strict=True)


def _cycles(pairs: Sequence[tuple[str, str]]) -> Iterator[list[str]]:
    """Yield the shortest cycle through each pair of classes that the run locked in succession."""
    after: dict[str, list[str]] = {}
    for held, row in pairs:
        after.setdefault(held, []).append(row)
    for held, row in pairs:
        way = _way(after, row, held, inf)
        if way is not None:
            yield way


def _way(after: Mapping[T, Iterable[T]], start: T, end: T, most_visited: float) -> list[T] | None:
    """Return the shortest cycle from the end to the start and back, the end first."""
    ways, visited = deque([[start]]), {start}
    while ways and len(visited) < most_visited:
        way = ways.popleft()
        for following in after.get(way[-1], ()):
            if following == end:
                return [end, *way]
            if following not in visited:
                visited.add(following)
                ways.append([*way, following])
    return None
