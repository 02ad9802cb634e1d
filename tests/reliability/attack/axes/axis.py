"""A direction in which programs vary, or several at once; and ends of a transaction that the session does not see."""

from __future__ import annotations

import faulthandler
import os
import signal
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sa_doclock import LockingSession, LockMisuse
from tests.reliability.attack.actions import FOR_UPDATE, FREE, LOCKS, WRITES, Action, Counted
from tests.reliability.attack.world import Order, Place, World

# --------------------------------------------------------------------------------------------------
# One direction in which programs vary, and several of them at once.

if TYPE_CHECKING:
    from tests.reliability.attack.scenario import Scenario

Turn = Callable[["Scenario", int], object]

SERVERS = frozenset({"postgresql", "mysql", "mariadb"})
#: These touch rows outside documents, which no session reads again; the second place has other rows.
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

    :ivar databases: the databases with this axis.
    :ivar turns: actions of the program between its locks and writes.
    :ivar endings: the turns that end a transaction.
    :ivar without: common actions that make no sense here.
    :ivar there: the locks and writes that name the second place themselves.
    :ivar unmoved: the locks and writes that ignore a map; while a map applies, the session refuses these writes.
    :ivar both: other programs write at both places.
    :ivar open: makes the program's session.
    :ivar where: the current place of the other locks and writes.
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
        """Print the name in hypothesis's report of a failure."""
        printer.text(self.name)


PLAIN = Axis("plain", locks=LOCKS, writes=WRITES, free=FREE)


@cache
def together(stage: Axis, *additions: Axis) -> Axis:
    """Return these axes combined; the first decides where the rows are."""
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


# --------------------------------------------------------------------------------------------------
# Ends of a transaction that the session does not see, and a fork in the middle of one.

ABSENT = 99
_CHILD_SECONDS = 60
_INNODB = frozenset({"mysql", "mariadb"})


def _believes(action: Callable[[LockingSession], object]) -> Turn:
    return lambda scenario, _: action(scenario.session)


def _sets_level(text: str) -> Turn:
    def turn(scenario: Any, _: int) -> None:
        try:
            scenario.session.execute(sa.text(text))
        except DBAPIError:  # SQLite, or an earlier statement in the transaction
            scenario.roll_back()

    return turn


def _ends(
    end: Callable[[LockingSession], object],
    *,
    committed: bool = True,
    on: frozenset[str] = frozenset(),
) -> Turn:
    def turn(scenario: Any, _: int) -> None:
        if not on or scenario.world.name in on:
            scenario.end_by(end, committed=committed)

    return turn


_ENDINGS: Mapping[str, Turn] = {
    "exec_driver_sql": _ends(lambda s: s.connection().exec_driver_sql("COMMIT")),
    "cursor": _ends(lambda s: s.connection().connection.cursor().execute("COMMIT")),
    "driver's commit": _ends(lambda s: s.connection().connection.commit()),
    "driver's rollback": _ends(lambda s: s.connection().connection.rollback(), committed=False),
    "COMMIT with a comment": _ends(lambda s: s.execute(sa.text("/* so */ COMMIT"))),
    "DDL": _ends(lambda s: s.execute(sa.text("DROP TABLE IF EXISTS at_nothing")), on=_INNODB),
}
FOREIGN_END = Axis(
    "a foreign end without a lock",
    turns={
        "inserts": lambda scenario, _: scenario.insert(),
        "lock_key": _believes(lambda s: s.lock_key("attack", lock_timeout=0)),
        "locks nothing": _believes(lambda s: s.get_entity(Order, ABSENT, FOR_UPDATE)),
        "locks an empty set": _believes(
            lambda s: s.scalars(s.entity_set(Order, FOR_UPDATE).where(Order.id == ABSENT)).all()
        ),
        "SET TRANSACTION": _sets_level("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"),
        "SET with a comment": _sets_level(
            "/* so */ SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
        ),
        **_ENDINGS,
    },
    endings=frozenset(_ENDINGS),
)


def _forks(child: Callable[[Any, int], object], *, refused: bool) -> Turn:
    def turn(scenario: Any, doc: int) -> None:
        if not scenario.session.in_transaction():
            return  # the program disposes of the pool's connections
        scenario.session.connection()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads: none holds a lock
            process = os.fork()
        if not process:
            _run(scenario.session, doc, child, refused=refused)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        assert status != 1, "the child was not refused"
        assert status == 0, "the child has failed"

    return turn


def _run(session: Any, doc: int, child: Callable[[Any, int], object], *, refused: bool) -> None:
    """Run the child, and exit at once: status 1 means that the session did not refuse a use."""
    status = 2
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.register(signal.SIGALRM, chain=True)  # a hanging child says where, and ends
    signal.alarm(_CHILD_SECONDS)
    try:
        child(session, doc)
        status = 1 if refused else 0
    except LockMisuse:
        status = 0 if refused else 2
    finally:
        os._exit(status)


_REFUSED: Mapping[str, Callable[[Any, int], object]] = {
    "child locks": lambda s, doc: s.get_entity(Order, doc, FOR_UPDATE),
    "child reads": lambda s, _: s.execute(sa.text("SELECT 1")),
    "child writes": lambda s, doc: s.execute(
        sa.update(Order).where(Order.id == doc).values(count=77)
    ),
    "child commits": lambda s, _: s.commit(),
}
_PERMITTED: Mapping[str, Callable[[Any, int], object]] = {
    "child closes": lambda s, _: s.close(),
    "child rolls back": lambda s, _: s.rollback(),
    "child disposes": lambda s, _: (s.close(), s.get_bind().dispose(close=False)),
}
FORK = Axis(
    "a fork",
    turns={
        **{name: _forks(child, refused=True) for name, child in _REFUSED.items()},
        **{name: _forks(child, refused=False) for name, child in _PERMITTED.items()},
    },
)
