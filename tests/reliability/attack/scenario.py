"""A random program, with a check of the session's promises after each step."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import (
    InvalidRequestError,
    NoInspectionAvailable,
    OperationalError,
    PendingRollbackError,
)
from sqlalchemy.orm import ORMExecuteState, SessionTransaction
from sqlalchemy.orm.exc import StaleDataError

from sa_doclock import DocLockError, LockingSession, LockOptions, UnlockedWrite
from tests.reliability.attack.actions import PENDING, VERSIONED, Counted
from tests.reliability.attack.axes.axis import PLAIN, Axis
from tests.reliability.attack.world import (
    DOCS,
    NEW,
    TOKEN,
    Counters,
    Line,
    LineAgain,
    Order,
    OrderAgain,
    Place,
    Remark,
    Row,
    Task,
    World,
    new_rows,
)


class Step(NamedTuple):
    """One step of a program.

    :ivar what: "lock", "write", "free", "pending", "others", "listen", "turn", or the name of a disturbance.
    """

    what: str
    how: str = ""
    doc: int = 1


DISTURBANCES = (
    *(
        "read",
        "expire",
        "forget",
        "attach",
        "SELECT 1",
        "savepoint",
        "back to savepoint",
        "release",
    ),
    *("COMMIT", "COMMIT AND CHAIN", "ROLLBACK", "commit", "rollback"),
)
LISTENERS = ("read", "Order", "Line")
"""The things that a listener does: it reads, or changes the header or a line."""
TEXTS = frozenset({"SELECT 1", "COMMIT", "COMMIT AND CHAIN", "ROLLBACK"})
_DISCARDING = frozenset({"expire", "forget", "refresh", "COMMIT", "COMMIT AND CHAIN", "ROLLBACK"})
"""They drop what is pending, as SQLAlchemy's refresh() does, or leave it to another transaction."""
_PARTS = ("at_line", "at_remark", "at_task")


Held = Mapping[Any, LockOptions]


@contextmanager
def _version_refused(lock: str) -> Iterator[None]:
    """Translate SQLAlchemy's error into ours: get() and refresh() never accept a newer version."""
    try:
        yield
    except StaleDataError as error:
        if {"get", "refresh"}.isdisjoint(
            lock.split()
        ):  # from its flush: an object that was added again is stale
            raise
        raise DocLockError(str(error)) from error


class Scenario:
    """One run of a program along an axis."""

    def __init__(self, world: World, axis: Axis = PLAIN) -> None:
        self.world, self.axis, self.session = world, axis, axis.open(world)
        self._writes = {"write": axis.writes, "free": axis.free, "pending": PENDING}
        world.refill()
        self.committed: Counters = Counter()
        self.mine: list[Row] = []  # incremented in the open transaction
        self.touched: set[Row] = set()  # the same at any place, including undone changes
        self.locked: dict[int, Place] = {}  # the place of each document's last lock
        self.savepoints: list[tuple[SessionTransaction, int, Held]] = []
        self.kept: list[object] = []  # the identity map is weak
        self.attached = False  # an object was added with its earlier version: it may be stale
        self.listens: Step | None = None  # the listener's action during the next lock

    def run(self, steps: list[Step]) -> None:
        """Run the program and commit; then check the counters."""
        with self.session:
            for step in [*steps, Step("commit")]:
                self._try(step)
        assert self.world.counters() == self.committed

    def _try(self, step: Step) -> None:
        self.was_pending = self.is_pending
        try:
            self._take(step)
            self._check_locks()
        except (DocLockError, PendingRollbackError) as error:
            self._check_refusal(step, error)
            self.roll_back()
        except StaleDataError:
            tokens = any(key[2] is not None for key in self.session.identity_map.keys())  # noqa: SIM118  # no Mapping
            if not self.attached and not tokens:  # the row's other object has the new version
                raise
            self.roll_back()

    def _take(self, step: Step) -> None:
        session, doc = self.session, step.doc
        if doc == NEW and step.what != "turn" and not self._has_new(self._where(step)):
            return
        if self.is_pending and not _DISCARDING.isdisjoint(step[:2]):
            return
        if step.what == "lock":
            place, before = self._where(step), doc in self._documents()
            # On SQLite, an UPDATE of no row takes the lock, and the guard refuses it earlier.
            self.elsewhere = any(self.locked[held] is not place for held in self._documents())
            self.held_before = False
            with self._listening(doc), _version_refused(step.how):
                self.kept.append(self.axis.locks[step.how](session, doc))
            new = place.row("new", doc) in self.mine  # no other session sees it
            assert new or not self._holds(doc) or place.is_locked(doc), "granted, and free"
            self._check_other_objects(doc)
            if not before:  # otherwise this locks a second class
                self.locked[doc] = place
        elif step.what == "listen":
            self.listens = step
        elif step.what in self._writes:
            self._write(step, self._writes[step.what][step.how])
        elif step.what == "others":
            self._others_write(doc)
        elif step.what == "turn":
            if not self.is_pending:  # a flush would write pending changes at another place
                self.axis.turns[step.how](self, doc)
        else:
            self._disturb(step)

    def _check_other_objects(self, doc: int) -> None:
        """Inspect the header under an identity token: a flush of it would check the version first."""
        key = sa.inspect(Order).identity_key_from_primary_key((doc,), TOKEN)
        header = self.session.identity_map.get(key)
        if header is None or not self._holds(doc) or ("at_order", doc) in self.touched:
            return
        with self.session.no_autoflush:
            now = self.session.scalar(sa.select(Order.count).where(Order.id == doc))
        assert header.__dict__.get("count", now) == now, "held, and another object of it is old"

    def _others_write(self, doc: int) -> None:
        for place in self.world.places if self.axis.both else (self.world.here,):
            if (doc != NEW or place.row("new", doc) in self.committed) and place.others_write(doc):
                rows = [("at_order", doc), *((part, 10 * doc) for part in _PARTS)]
                self.committed.update(place.row(*row) for row in rows)

    @contextmanager
    def _listening(self, doc: int) -> Iterator[None]:
        """Make a listener read or change the document while the session asks for its lock, before others do."""
        step, self.listens = self.listens, None
        if step is None or step.doc != doc or self.is_pending or self.touched:
            yield
            return
        done: list[ORMExecuteState] = []
        place = self._here()

        def listen(state: ORMExecuteState) -> None:
            if done or not state.is_select:
                return
            done.append(state)
            rows: tuple[tuple[Any, int], ...] = ((Order, doc), (Line, 10 * doc))
            for entity, key in rows:
                row: Any = self.session.get(entity, key)
                if row is None:
                    continue
                self.kept += [row, row.count]
                if step.how == entity.__name__:
                    row.count += 1
                    self.was_pending = True
                    self.mine.append(place.row(entity.__table__.name, key))
                    self.touched.add((entity.__table__.name, key))
            self._others_write(doc)

        sa.event.listen(self.session, "do_orm_execute", listen)
        try:
            yield
        finally:
            sa.event.remove(self.session, "do_orm_execute", listen)

    def _where(self, step: Step) -> Place:
        if step.how in self.axis.there:
            return self.world.there
        return self.world.here if self._is_unmoved(step) else self._here()

    def _here(self) -> Place:
        return self.axis.where(self.world, self.session)

    def _is_unmoved(self, step: Step) -> bool:
        """Return whether the step bypasses the map of the connection."""
        return step.how in self.axis.unmoved and self._here() is not self.world.here

    def _write(self, step: Step, counted: Counted) -> None:
        action, counters = counted
        place = self._where(step)
        new = place.row("new", step.doc) in self.mine
        held = new or (self._holds(step.doc) and self.locked[step.doc] is place)
        self.held_before = held and not self._is_unmoved(step)
        self.elsewhere = any(self.locked[doc] is not place for doc in self._documents())
        rows = {self._row(step, *one) for one in counters}
        self._read_own_writes(rows)
        raises = (
            self.world.versioned
            and len(self.world.places) == 1
            and self.held_before
            and not new
            and step.what == "write"
            and step.how in VERSIONED
        )
        before = self.world.version(self.session, step.doc) if raises else 0
        self.kept.append(action(self.session, step.doc))
        if raises:
            assert self.world.version(self.session, step.doc) > before, "of the same version"
        self.mine += [place.row(*row) for row in rows]
        self.touched |= rows
        if step.what == "write":
            assert self.held_before, "written, and not held"
            assert new or place.is_locked(step.doc), "written without the lock"

    def _row(self, step: Step, table: str, position: int) -> tuple[str, int]:
        return table, step.doc if table in ("at_order", "lines") else 10 * step.doc + position

    def _read_own_writes(self, rows: Collection[tuple[str, int]]) -> None:
        """Flush and expire the program's own changes to these rows, by any class."""
        if self.touched.isdisjoint(rows):
            return
        self.session.flush()
        for one in list(self.session.identity_map.values()):
            state = sa.inspect(one)
            if (state.mapper.local_table.name, state.identity[0]) in self.touched.intersection(
                rows
            ):
                self.session.expire(one)

    @property
    def is_pending(self) -> bool:
        """True if there is something to flush."""
        return any(map(self.session.is_modified, self.session.dirty))

    def _disturb(self, step: Step) -> None:
        session = self.session
        if step.what in TEXTS:
            self._execute(step.what)
        else:
            getattr(self, f"_{step.what.replace(' ', '_')}")(session)

    def _execute(self, text: str) -> None:
        """Execute a statement that the library cannot parse."""
        if text == "SELECT 1":
            self.session.execute(sa.text(text))
            return
        chained = text == "COMMIT AND CHAIN" and self.world.name == "sqlite"

        def end(session: LockingSession) -> None:
            for one in ("COMMIT", "BEGIN") if chained else (text,):
                session.execute(sa.text(one))

        self.end_by(end, committed=text != "ROLLBACK")

    def _read(self, session: LockingSession) -> None:
        entities: tuple[Any, ...] = (Order, Line, OrderAgain, LineAgain, Remark, Task)
        for entity in entities:
            self.kept += session.scalars(sa.select(entity)).all()
        with suppress(InvalidRequestError):  # from raiseload()
            self.kept += [line for order in session.query(Order) for line in order.lines]

    def _expire(self, session: LockingSession) -> None:
        session.expire_all()

    def _forget(self, session: LockingSession) -> None:
        session.expunge_all()

    def _attach(self, session: LockingSession) -> None:
        """Add the forgotten objects again."""
        for one in self.kept:
            with suppress(InvalidRequestError, NoInspectionAvailable):  # another object exists
                if sa.inspect(one).detached:
                    session.add(one)
                    self.attached = True

    def _savepoint(self, session: LockingSession) -> None:
        savepoint = session.begin_nested()
        self.savepoints.append((savepoint, len(self.mine), dict(session.held_locks)))

    def _back_to_savepoint(self, _session: LockingSession) -> None:
        self._end_savepoint(back=True)

    def _release(self, _session: LockingSession) -> None:
        self._end_savepoint(back=False)

    def _commit(self, _session: LockingSession) -> None:
        self.commit()

    def commit(self) -> None:
        self.session.commit()
        self.touched.clear()
        self._note_end(self.world.places, committed=True)

    def _rollback(self, _session: LockingSession) -> None:
        self.roll_back()

    def insert(self) -> None:
        """Insert the new document, which needs no lock in this transaction."""
        if self._has_new(self._here()):
            return
        for row in list(self.session.identity_map.values()):
            if sa.inspect(row).identity[0] in (NEW, 10 * NEW, 10 * NEW + 1):
                self.session.expunge(row)  # from an INSERT that foreign SQL rolled back
        rows = new_rows()
        self.session.add_all(rows)
        self.session.flush()
        self.kept += rows
        self.mine.append(self._here().row("new", NEW))

    def _has_new(self, place: Place) -> bool:
        row = place.row("new", NEW)
        return row in self.mine or row in self.committed

    def end_by(self, end: Callable[[LockingSession], object], *, committed: bool) -> None:
        """End the transaction without the session; SQLAlchemy would not notice a lost savepoint."""
        if not self.session.in_transaction() or self.savepoints:
            return
        ends = self.axis.ends(self.world, self.session)
        try:
            end(self.session)
        except (
            OperationalError,
            sqlite3.OperationalError,
        ):  # SQLite, which no longer has an open transaction
            self.roll_back()
        else:
            self._note_end(ends, committed=committed)

    def _end_savepoint(self, *, back: bool) -> None:
        if not self.savepoints:
            return
        savepoint, mark, held = self.savepoints.pop()
        if back:
            savepoint.rollback()
            del self.mine[mark:]
            assert dict(self.session.held_locks) == held, "the savepoint's locks are given up"
        else:
            savepoint.commit()

    def _note_end(self, places: Collection[Place], *, committed: bool) -> None:
        ended = [row for row in self.mine if any(place.has(row) for place in places)]
        self.mine = [row for row in self.mine if not any(place.has(row) for place in places)]
        if committed:
            self.committed.update(ended)
        self.savepoints.clear()

    def roll_back(self) -> None:
        self.session.rollback()
        self.touched.clear()
        self.mine.clear()
        self.savepoints.clear()

    def _documents(self) -> set[int]:
        """Return the documents that the session holds by any lock."""
        return {key[0] for entity, key in self.session.held_locks if entity is Order}

    def _holds(self, doc: int) -> bool:
        held = self.session.held_locks.get((Order, (doc,)))
        return held is not None and LockOptions.ForUpdate in held

    def _check_locks(self) -> None:
        for doc in DOCS:
            assert not self._holds(doc) or self.locked[doc].is_locked(doc), (
                "in held_locks, and free"
            )

    def _check_refusal(self, step: Step, error: Exception) -> None:
        if isinstance(error, UnlockedWrite) and not self.was_pending:
            assert step.what == "write" or self.elsewhere, "refused, and needs no lock"
            assert not self.held_before, "refused, and the lock is held"
