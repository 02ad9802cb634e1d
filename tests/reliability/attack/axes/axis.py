"""One direction in which programs vary, and several of them at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from sa_doclock import LockingSession
from tests.reliability.attack.actions import FREE, LOCKS, WRITES, Action, Counted
from tests.reliability.attack.world import Place, World

if TYPE_CHECKING:
    from tests.reliability.attack.scenario import Scenario

Turn = Callable[["Scenario", int], object]

SERVERS = frozenset({"postgresql", "mysql", "mariadb"})
#: They touch rows outside of documents, which nothing reads again: the second place has other ones.
OUTSIDE = frozenset(
    {
        *("another's remark", "task", "by a listener", "inserted by a listener"),
        *("becomes an errand", "becomes a remark"),
    }
)


def _here(world: World, _session: LockingSession) -> Place:
    return world.here


def _one(world: World, _session: LockingSession) -> Collection[Place]:
    return (world.here,)


@dataclass(frozen=True, eq=False)
class Axis:
    """Additions to the actions of every program, and the places that its statements go to.

    :ivar databases: those that have it.
    :ivar turns: what the program does between its locks and writes.
    :ivar endings: of these, the ends of a transaction.
    :ivar without: actions of every program that mean nothing here.
    :ivar there: the locks and writes that name the second place themselves.
    :ivar unmoved: those that go to the first place whatever the map says; there the writes are refused.
    :ivar both: other programs write at both places.
    :ivar open: makes the program's session.
    :ivar where: the place where the other locks and writes go now.
    :ivar ends: the places whose transaction a ``text("COMMIT")`` ends.
    """

    name: str
    databases: frozenset[str] = SERVERS | {"sqlite"}
    locks: Mapping[str, Action] = field(default_factory=dict)
    writes: Mapping[str, Counted] = field(default_factory=dict)
    free: Mapping[str, Counted] = field(default_factory=dict)
    turns: Mapping[str, Turn] = field(default_factory=dict)
    endings: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    there: frozenset[str] = frozenset()
    unmoved: frozenset[str] = frozenset()
    both: bool = False
    open: Callable[[World], LockingSession] = World.session
    where: Callable[[World, Any], Place] = _here
    ends: Callable[[World, Any], Collection[Place]] = _one

    def _repr_pretty_(self, printer: Any, _cycle: object) -> None:
        """Print the name in hypothesis's account of a failure."""
        printer.text(self.name)


PLAIN = Axis("plain", locks=LOCKS, writes=WRITES, free=FREE)


@cache
def together(stage: Axis, *additions: Axis) -> Axis:
    """Return all that these axes have: the first says where the rows are."""
    axes = tuple(dict.fromkeys((PLAIN, stage, *additions)))
    added: dict[str, Any] = {
        kind: {
            name: action
            for axis in axes
            for name, action in getattr(axis, kind).items()
            if name not in stage.without
        }
        for kind in ("locks", "writes", "free", "turns")
    }
    endings = frozenset().union(*(axis.endings for axis in axes))
    return replace(stage, endings=endings, name=" + ".join(axis.name for axis in axes[1:]), **added)
