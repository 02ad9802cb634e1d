"""Searches the orders of two functions' steps, and runs each distinct order once.

It uses dynamic partial order reduction with sleep sets (Flanagan and Godefroid 2005; Abdulla and
others 2014), for two processes.  A run is a sequence of points; at each point, one function takes one
step.  After a run, the search looks for pairs of conflicting steps whose order no other step
enforces.  Each such pair adds a point at which the other function goes first.  A step that waits for
a lock counts at the point where it was sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sa_doclock.testing.scheduling import FIRST, SECOND, Accesses, Diverged, conflict


@dataclass
class Point:
    """One decision of a run.

    :ivar steps: the functions that could run, each with the accesses of its next step.
    :ivar chosen: the function that ran.
    :ivar todo: functions still to be tried here.
    :ivar tried: functions already tried, with the accesses of their steps.
    :ivar asleep: functions whose step was tried before, when nothing since then could affect it.
    :ivar label: the text of the step, which must be the same in the next run.
    """

    steps: Mapping[int, Accesses]
    chosen: int
    todo: set[int]
    asleep: Mapping[int, Accesses]
    tried: dict[int, Accesses] = field(default_factory=dict)
    label: str = ""


class Search:
    """The orders that ran, and the orders still to run.

    :param reduce: skip orders that cannot differ from another one; False: run each order.
    """

    def __init__(self, *, reduce: bool = True) -> None:
        self._reduce = reduce
        self._points: list[Point] = []
        self._forced = 0

    def next(self) -> bool:
        """Select the next order to run; return False if none is left."""
        while self._points:
            point = self._points[-1]
            left = point.todo - set(point.tried)
            if left:
                point.chosen = min(left)
                self._forced = len(self._points)
                return True
            self._points.pop()
        return False

    def choose(self, depth: int, steps: Mapping[int, Accesses], labels: Mapping[int, str]) -> int:
        """Return the function that runs at this point of the run.

        :raises Diverged: the next function cannot run, or sends another statement than before.
        """
        if depth < self._forced:
            return self._chosen_before(self._points[depth], steps, labels)
        last = self._points[-1].chosen if self._points else FIRST
        asleep = self._asleep() if self._reduce else {}
        awake = [function for function in steps if function not in asleep] or [*steps]
        chosen = last if last in awake else awake[0]
        todo = {chosen} if self._reduce else {*steps}
        self._points.append(Point(dict(steps), chosen, todo, asleep, label=labels[chosen]))
        return chosen

    def _asleep(self) -> dict[int, Accesses]:
        if not self._points:
            return {}
        point = self._points[-1]
        done, before = point.tried[point.chosen], {**point.asleep, **point.tried}
        return {
            function: accesses
            for function, accesses in before.items()
            if function != point.chosen and not conflict(accesses, done)
        }

    def _chosen_before(
        self, point: Point, steps: Mapping[int, Accesses], labels: Mapping[int, str]
    ) -> int:
        if point.chosen not in steps:
            raise Diverged(
                "a function that went on in another run has ended, or waits, in this one"
            )
        label = labels[point.chosen]
        if point.chosen in point.tried and label != point.label:
            raise Diverged(f"{label!r} was {point.label!r} in another run of the same order")
        point.label = label
        return point.chosen

    def note(self, depth: int, accesses: Accesses) -> None:
        """Note the accesses of the step at this point, after it ran."""
        point = self._points[depth]
        point.tried[point.chosen] = accesses

    def end(self) -> None:
        """Search the finished run for orders to try."""
        if not self._reduce:
            return
        for before, function in races(self._points):
            point = self._points[before]
            if function in point.steps and function not in point.asleep:
                point.todo.add(function)

    def give_up(self, depth: int) -> None:
        """Skip an order that could not be forced at this point."""
        if depth < len(self._points):
            point = self._points[depth]
            point.tried.setdefault(point.chosen, point.steps.get(point.chosen, frozenset()))
            del self._points[depth + 1 :]


def races(points: Sequence[Point]) -> list[tuple[int, int]]:
    """Return the points whose step conflicts with a later step that could have come first.

    :returns: each point, with the function of the later step.
    """
    found = []
    known: dict[int, int] = {FIRST: -1, SECOND: -1}  # the other function's last step before it
    for index, point in enumerate(points):
        function, accesses = point.chosen, point.tried[point.chosen]
        for woken in set(point.steps) - set(points[index - 1].steps if index else point.steps):
            known[woken] = index - 1  # it waited for the previous step
        for earlier in range(index - 1, known[function], -1):
            before = points[earlier]
            if before.chosen != function and conflict(before.tried[before.chosen], accesses):
                found.append((earlier, function))
                known[function] = earlier
                break
    return found
