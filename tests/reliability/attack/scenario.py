"""A random program: what the session promises of it, looked at after each step."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.orm import SessionTransaction

from sa_doclock import DocLockError, LockingSession, LockOptions, UnlockedWrite
from tests.reliability.attack.deeds import FREE, LOCKS, WRITES
from tests.reliability.attack.models import DOCS, Line, LineAgain, Order, OrderAgain, Remark
from tests.reliability.attack.world import Counters, World


class Step(NamedTuple):
    """One step of a program.

    :ivar what: "lock", "write", "free", "others", or the name of a disturbance.
    """

    what: str
    how: str = ""
    doc: int = 1


DISTURBANCES = (
    *("read", "expire", "forget", "select 1", "savepoint", "back to savepoint", "release"),
    *("COMMIT", "ROLLBACK", "commit", "rollback"),
)


class Scenario:
    """One run of a program."""

    def __init__(self, world: World) -> None:
        self.world, self.session = world, world.session()
        world.refill()
        self.committed: Counters = Counter()
        self.mine: list[tuple[str, int]] = []  # counted up in the open transaction
        self.savepoints: list[tuple[SessionTransaction, int]] = []
        self.kept: list[object] = []  # the identity map is weak

    def run(self, steps: list[Step]) -> None:
        """Run the program, and commit; then look at the counters."""
        with self.session:
            for step in [*steps, Step("commit")]:
                try:
                    self._take(step)
                    self._check_locks()
                except (DocLockError, PendingRollbackError) as error:
                    self._check_refusal(step, error)
                    self._roll_back()
        assert self.world.counters() == self.committed

    def _take(self, step: Step) -> None:
        session, doc = self.session, step.doc
        if step.what == "lock":
            self.kept.append(LOCKS[step.how](session, doc))
        elif step.what in ("write", "free"):
            deed, counted = (WRITES if step.what == "write" else FREE)[step.how]
            self.held_before = self._holds(doc)
            deed(session, doc)
            for table, position in counted:
                key = doc if table in ("at_order", "lines") else 10 * doc + position
                self.mine.append((table, key))
            assert step.what == "free" or self.world.is_locked(doc), "written without the lock"
        elif step.what == "others":
            if self.world.others_write(doc):
                self.committed.update([("at_order", doc), ("at_line", 10 * doc)])
        else:
            self._disturb(step)

    def _disturb(self, step: Step) -> None:
        session = self.session
        if step.what == "read":
            for entity in (Order, Line, OrderAgain, LineAgain, Remark):
                self.kept += session.scalars(sa.select(entity)).all()  # type: ignore[arg-type]
            self.kept += [line for order in session.query(Order) for line in order.lines]
        elif step.what == "expire":
            session.expire_all()
        elif step.what == "forget":
            session.expunge_all()
        elif step.what == "select 1":
            session.execute(sa.text("SELECT 1"))
        elif step.what == "savepoint":
            self.savepoints.append((session.begin_nested(), len(self.mine)))
        elif step.what in ("back to savepoint", "release"):
            self._end_savepoint(back=step.what != "release")
        elif step.what == "commit":
            session.commit()
            self._note_commit()
        elif step.what == "rollback":
            self._roll_back()
        elif session.in_transaction() and not self.savepoints:
            session.execute(sa.text(step.what))
            if step.what == "COMMIT":
                self._note_commit()
            self.mine.clear()

    def _end_savepoint(self, *, back: bool) -> None:
        if not self.savepoints:
            return
        savepoint, mark = self.savepoints.pop()
        if back:
            savepoint.rollback()
            del self.mine[mark:]
        else:
            savepoint.commit()

    def _note_commit(self) -> None:
        self.committed.update(self.mine)
        self.mine.clear()
        self.savepoints.clear()

    def _roll_back(self) -> None:
        self.session.rollback()
        self.mine.clear()
        self.savepoints.clear()

    def _holds(self, doc: int) -> bool:
        held = self.session.held_locks.get((Order, (doc,)))
        return held is not None and LockOptions.ForUpdate in held

    def _check_locks(self) -> None:
        for doc in DOCS:
            assert not self._holds(doc) or self.world.is_locked(doc), "in held_locks, and free"

    def _check_refusal(self, step: Step, error: Exception) -> None:
        if isinstance(error, UnlockedWrite):
            assert step.what == "write", "refused, and needs no lock"
            assert not self.held_before, "refused, and the lock is held"


def program_of(session: LockingSession) -> str:
    """Return what a session holds, for the words of a failure."""
    return str(dict(session.held_locks))
