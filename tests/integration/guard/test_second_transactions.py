"""A flush sends SQLAlchemy's own statements in every transaction, and none per additional row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from operator import le
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session, object_session

from sa_doclock import LockingSession, LockOptions
from tests.integration.guard.models import (
    Budget,
    City,
    Contract,
    Country,
    Entry,
    Fault,
    Line,
    Order,
    Plan,
    Post,
    Repair,
    Seal,
    Step,
    Tag,
    Tax,
    Terms,
    Voucher,
)

pytestmark = pytest.mark.each_value

FEW, MANY = 2, 7
TRANSACTIONS = 3


class Kind(NamedTuple):
    """A kind of part: a document with a number of parts, and the function that lists them."""

    make: Callable[[int, int], Any]
    parts: Callable[[Any], list[Any]]
    value: str = "value"


def some(part: Callable[..., Any], key: int, count: int) -> list[Any]:
    return [part(id=key + number) for number in range(count)]


KINDS = {
    "with a back reference": Kind(
        lambda key, count: Order(id=key, lines=some(Line, key, count)), lambda order: [*order.lines]
    ),
    "parts of parts": Kind(
        lambda key, count: Order(
            id=key, lines=[Line(id=one.id, taxes=[one]) for one in some(Tax, key, count)]
        ),
        lambda order: [tax for line in order.lines for tax in line.taxes],
        "rate",
    ),
    "many-to-many": Kind(
        lambda key, count: Order(id=key, tags=some(partial(Tag, name="a"), key, count)),
        lambda order: [*order.tags],
        "name",
    ),
    "recursive": Kind(
        lambda key, count: Plan(id=key, steps=[Step(id=2 * key, substeps=some(Step, key, count))]),
        lambda plan: [*plan.steps[0].substeps],
    ),
    "without a back reference": Kind(
        lambda key, count: Voucher(year=2024, number=key, entries=some(Entry, key, count)),
        lambda voucher: [*voucher.entries],
    ),
    "many-to-one": Kind(
        lambda key, _: Contract(id=key, terms=Terms(id=key, text="a")),
        lambda contract: [contract.terms],
        "text",
    ),
    "one-to-one": Kind(
        lambda key, _: Contract(id=key, seal=Seal(id=key, text="a")),
        lambda contract: [contract.seal],
        "text",
    ),
    "single-table inheritance": Kind(
        lambda key, count: Fault(id=key, repairs=some(Repair, key, count)),
        lambda fault: [*fault.repairs],
        "hours",
    ),
    "by another key": Kind(
        lambda key, count: Budget(id=key, code=str(key), posts=some(Post, key, count)),
        lambda budget: [*budget.posts],
    ),
    "by a natural key": Kind(
        lambda key, count: Country(code=str(key), cities=some(City, key, count)),
        lambda country: [*country.cities],
    ),
}

LOCKS: dict[str, Callable[[LockingSession, type[Any], Any], Any]] = {
    "get_entity": lambda session, entity, ident: session.get_one_entity(
        entity, ident, LockOptions.ForUpdate
    ),
    "adopted": lambda session, entity, ident: session.get_one(entity, ident, with_for_update=True),
}


def refresh(session: Session, parts: list[Any]) -> None:
    for part in parts:
        session.refresh(part)


def expire(session: Session, parts: list[Any]) -> None:
    for part in parts:
        session.expire(part)


def expire_owners(session: Session, parts: list[Any]) -> None:
    """Expire only the attributes that lead to the owner: relationships and foreign keys."""
    for part in parts:
        mapper = sa.inspect(part).mapper
        values = {"id", "value", "rate", "name", "text", "hours", "kind"}
        session.expire(part, {*mapper.attrs.keys()} - values)


BEFORE: dict[str, Callable[[Session, list[Any]], None]] = {
    "as locked": lambda _, __: None,
    "refresh": refresh,
    "expire": expire,
    "expire_all": lambda session, _: session.expire_all(),
    "owners expired": expire_owners,
}


def change(header: Any, kind: Kind) -> None:
    for part in kind.parts(header):
        old = getattr(part, kind.value)
        setattr(part, kind.value, old + (1 if isinstance(old, int) else "a"))


def delete(header: Any, kind: Kind) -> None:
    session = object_session(header)
    assert session is not None
    with session.no_autoflush:  # else each is written before the next
        for part in kind.parts(header):
            session.delete(part)


WRITES = {"changed": change, "deleted": delete}


@contextmanager
def statements(engine: sa.Engine) -> Iterator[list[str]]:
    sent: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        sent.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield sent
    event.remove(engine, "before_cursor_execute", note)


def flushes(
    session: Session,
    lock: Callable[[Any, type[Any], Any], Any],
    key: tuple[type[Any], Any],
    do: Callable[[Session, Any], None],
) -> list[int]:
    """Return the number of the flush's statements in each transaction of a session."""
    engine: Any = session.get_bind()
    kept: list[Any] = []  # the identity map is weak
    found = []
    with session:
        for _ in range(TRANSACTIONS):
            header = lock(session, *key)
            kept.append(header)
            do(session, header)
            kept += session.identity_map.values()
            with statements(engine) as sent:
                session.flush()
            found.append(len(sent))
            session.rollback()
    return found


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_flush_sends_no_statement_more_for_a_row_more(
    engine: sa.Engine, kind: str, write: str
) -> None:
    """Neither in the session's first transaction, nor in later ones."""
    one = KINDS[kind]
    with Session(engine) as plain, plain.begin():
        headers = [one.make(1_000 * count, count) for count in (FEW, MANY)]
        plain.add_all(headers)
        plain.flush()
        keys = [sa.inspect(header).key[:2] for header in headers]
    for (locked, lock), (before, prepare) in product(LOCKS.items(), BEFORE.items()):

        def do(session: Session, header: Any, prepare: Any = prepare) -> None:
            prepare(session, one.parts(header))
            WRITES[write](header, one)

        few, many = (flushes(LockingSession(engine), lock, key, do) for key in keys)
        fewer, more = (flushes(Session(engine), LOCKS["adopted"], key, do) for key in keys)
        own = [there - here for here, there in zip(few, many, strict=True)]
        of_sqlalchemy = [there - here for here, there in zip(fewer, more, strict=True)]
        case = locked, before, few, many, fewer, more
        assert all(map(le, own, of_sqlalchemy)), case
        assert len({*many}) == 1, case
