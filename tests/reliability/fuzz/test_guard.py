"""Writes to a declared document: under its lock, or not at all."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from sqlalchemy import update

from sa_doclock import DocLockError, LockingSession, LockOptions, UnlockedWrite, WrongIsolation
from sa_doclock.options import GuardMode
from tests.reliability.fuzz.asking import MODIFIERS, VALID, Sessions, Wish, answer
from tests.reliability.fuzz.choices import batches, states, the_same_always
from tests.reliability.fuzz.entities import CLASSES
from tests.sql.models import Delivery

DOCUMENT = CLASSES["declared document"]
# SQLite takes its write lock by an UPDATE of no row.
_WRITTEN = re.compile(r"^UPDATE shop_delivery SET total(?!.*(0 = 1|1 != 1|false))", re.DOTALL)


def _by_flush(session: LockingSession, found: Any) -> None:
    found.total += 1
    session.flush()


def _by_statement(session: LockingSession, found: Any) -> None:
    session.execute(update(Delivery).where(Delivery.id == found.id).values(total=5))


WRITES = {"flush": _by_flush, "statement": _by_statement}
GUARDS: tuple[GuardMode, ...] = ("raise", "raise", "off")


@pytest.mark.slow
@the_same_always(examples=100)
@given(
    lock=st.sampled_from([lock for lock in VALID if LockOptions.SkipLocked not in lock]),
    way=st.sampled_from(sorted(WRITES)),
    guard=st.sampled_from(GUARDS),
    batch=batches,
    state=states,
)
def test_it_is_written_under_its_lock_or_not_at_all(
    served: Sessions, lock: LockOptions, way: str, guard: GuardMode, batch: bool, state: str
) -> None:
    read: list[Any] = []

    def ask(session: LockingSession) -> None:
        read.append(session.get_entity(Delivery, 1, lock))
        WRITES[way](session, read[0])

    wish = Wish(DOCUMENT, lock, batch=batch, state=state, guard=guard)
    found = answer(served, wish, ask, held=True)
    if found is None:
        return
    note(f"received {found.received}, raised {found.error!r}")
    assert found.error is None or isinstance(found.error, DocLockError)
    written = any(_WRITTEN.search(sql) for sql in found.received)
    assert written is (found.error is None)
    locked = LockOptions.ForUpdate in (lock & ~MODIFIERS) or state == "held ForUpdate"
    if read and guard == "raise":  # the lock was granted, or none was asked for
        assert isinstance(found.error, (UnlockedWrite, WrongIsolation)) is not locked
    if guard == "off":
        assert not isinstance(found.error, UnlockedWrite)
