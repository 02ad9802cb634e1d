"""The actors' actions, named as in the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.support.actors import PATIENCE, Actor, Step
from tests.support.models import Customer, Line, Order
from tests.support.waits import wait_until_blocked

T = TypeVar("T")
Seen = tuple[int, list[int]]


def seen(order: Order) -> Seen:
    """Return the order as the application sees it; load its lines if necessary."""
    return order.total, [line.value for line in order.lines]


def locks(
    entity: type[T], ident: Any, lock: LockOptions = LockOptions.ForUpdate, **how: Any
) -> Callable[[LockingSession], T]:
    """Make the step that locks this existing document."""

    def step(session: LockingSession) -> T:
        return session.get_one_entity(entity, ident, lock, **how)

    return step


def reads(lock: LockOptions = LockOptions.ForUpdate, **how: Any) -> Callable[..., Seen]:
    """Make the step that locks order 1, then reads it with its lines."""

    def step(session: LockingSession) -> Seen:
        return seen(session.get_one_entity(Order, 1, lock, **how))

    return step


def read_again(session: LockingSession) -> Seen:
    """Read order 1 again from the database, without another lock."""
    total = session.scalars(sa.select(Order.total).where(Order.id == 1)).one()
    values = session.scalars(sa.select(Line.value).where(Line.order_id == 1).order_by(Line.id))
    return total, list(values)


def add_ten(session: LockingSession) -> None:
    """Lock order 1 and add 10 to it and to its first line, without a commit."""
    order = session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    order.total += 10
    order.lines[0].value += 10
    session.flush()


def move_five(session: LockingSession) -> None:
    """Lock order 1 and move 5 between its lines, without changing the header."""
    order = session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    order.lines[0].value += 5
    order.lines[1].value -= 5
    session.flush()


def finds_held(
    entity: type[Any] = Order, ident: Any = 1, lock: LockOptions = LockOptions.ForUpdate
) -> Callable[[LockingSession], bool]:
    """Make the step that returns whether another session holds the document, and keeps no lock."""

    def step(session: LockingSession) -> bool:
        try:
            session.get_one_entity(entity, ident, lock | LockOptions.NoWait)
        except LockNotAvailable:
            return True
        finally:
            session.rollback()
        return False

    return step


def soon_free(session: LockingSession) -> bool:
    """Return whether order 1 becomes free once the server notices that its holder is gone.

    The server does not announce that moment: an attempt without waiting may come too early.
    """
    try:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=PATIENCE)
    except LockNotAvailable:
        return False
    finally:
        session.rollback()
    return True


def is_free(session: LockingSession, entity: type[Any], ident: int) -> bool:
    """Return whether this session can lock the document; it has no transaction afterwards."""
    try:
        session.get_entity(entity, ident, LockOptions.ForUpdate | LockOptions.NoWait)
    except LockNotAvailable:
        return False
    finally:
        session.rollback()
    return True


def locks_rows(statement: str) -> bool:
    """Return whether this SQL locks rows."""
    return "FOR UPDATE" in statement or "UPDLOCK" in statement


def save(session: LockingSession) -> None:
    """Commit the changes, and release the locks."""
    session.save_changes()


def roll_back(session: LockingSession) -> None:
    session.rollback()


#: SQL Server's queries beside a lock.
_QUESTIONS = ("CURRENT_TRANSACTION_ID()", "'Updateability'", "SELECT @@LOCK_TIMEOUT")


@contextmanager
def recorded(bind: sa.Engine | sa.Connection) -> Iterator[list[str]]:
    """Record the statements sent in the block, without our own queries."""
    statements: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        if not any(words in statement for words in _QUESTIONS):
            statements.append(statement)

    event.listen(bind, "before_cursor_execute", note)
    yield statements
    event.remove(bind, "before_cursor_execute", note)


# --------------------------------------------------------------------------------------------------
# Two actors who each hold what the other wants.

Session = Actor[LockingSession]

TOTALS = sa.select(Order.id, Order.total).order_by(Order.id)
NAMES = sa.select(Customer.id, Customer.name).order_by(Customer.id)


def set_total(ident: int, total: int) -> Callable[[LockingSession], Order]:
    """Make the step that locks and changes one order, without a commit."""

    def step(session: LockingSession) -> Order:
        order = session.get_one_entity(Order, ident, LockOptions.ForUpdate)
        order.total = total
        session.flush()
        return order

    return step


def rename(ident: int, name: str) -> Callable[[LockingSession], None]:
    """Make the step that writes an unlocked row, without a commit."""

    def step(session: LockingSession) -> None:
        session.get_one(Customer, ident).name = name
        session.flush()

    return step


def cross(
    alice: Session, bob: Session, step: Callable[[int], Callable[[LockingSession], Any]]
) -> tuple[Session, BaseException, Session, Step[Any]]:
    """Let alice, who has 1, lock 2, and bob, who has 2, lock 1; return the loser and the error."""
    steps = {alice: alice.starts(step(2))}
    wait_until_blocked(waiter=alice, holder=bob, step=steps[alice])
    steps[bob] = bob.starts(step(1))
    futures.wait(steps.values(), timeout=PATIENCE, return_when=futures.FIRST_EXCEPTION)
    lost = steps[alice].done() and steps[alice].exception() is not None
    loser, winner = (alice, bob) if lost else (bob, alice)
    failure = steps[loser].exception()
    assert failure is not None
    return loser, failure, winner, steps[winner]


def write(session: LockingSession) -> None:
    """Try to write, in one statement, a value that must not reach the database."""
    session.execute(sa.update(Customer).values(name="escaped"))
