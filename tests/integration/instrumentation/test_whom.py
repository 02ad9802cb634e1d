"""Targets of a listener: a class, a subclass, a maker, one session, the one in an async one."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sa_doclock import AsyncLockingSession, LockingSession, LockOptions
from tests.integration.asyncio.drivers import DRIVERS, connected, in_a_loop, url_for
from tests.integration.instrumentation.hearing import NAMES, Heard, hearing
from tests.support.databases import Database
from tests.support.models import Customer, Order

pytestmark = [  # SQLAlchemy's part of it does not depend on the database
    pytest.mark.databases("sqlite"),
    pytest.mark.not_databases("sqlite-journal"),
]

ForUpdate = LockOptions.ForUpdate


class Special(LockingSession):
    """An application's own."""


class MoreSpecial(Special):
    """And a subclass of it."""


def use(session: Session) -> None:
    assert isinstance(session, LockingSession)
    with session:
        session.get_one_entity(Order, 1, ForUpdate)
        session.commit()


def test_the_class_is_notified_of_all(engine: sa.Engine) -> None:
    with hearing(LockingSession) as heard:
        for make in (LockingSession, Special, sessionmaker(class_=LockingSession)):
            use(make(bind=engine))
    assert heard.names == (3, 0, 3)
    use(LockingSession(engine))
    assert heard.names == (3, 0, 3)  # event.remove()


def test_a_subclass_is_notified_of_its_own(engine: sa.Engine) -> None:
    with hearing(Special) as heard:
        use(LockingSession(engine))
        assert heard.names == (0, 0, 0)
        use(Special(engine))
        use(MoreSpecial(engine))
    assert heard.names == (2, 0, 2)


def test_a_class_that_is_made_later_is_notified(engine: sa.Engine) -> None:
    with hearing(LockingSession) as heard:

        class Late(LockingSession):
            pass

        use(Late(engine))
    assert heard.names == (1, 0, 1)


def test_a_maker_is_notified_of_its_sessions(engine: sa.Engine) -> None:
    make, other = (sessionmaker(engine, class_=LockingSession) for _ in range(2))
    with hearing(make) as heard:
        use(make())
        use(other())
        use(LockingSession(engine))
    assert heard.names == (1, 0, 1)


def test_a_scoped_session_too(engine: sa.Engine) -> None:
    scoped = scoped_session(sessionmaker(engine, class_=LockingSession))
    with hearing(scoped) as heard:
        use(scoped())
        scoped.remove()
    assert heard.names == (1, 0, 1)


def test_a_session_is_notified_of_itself(engine: sa.Engine) -> None:
    session, other = LockingSession(engine), LockingSession(engine)
    with hearing(session) as heard:
        use(other)
        assert heard.names == (0, 0, 0)
        use(session)
    assert heard.names == (1, 0, 1)
    assert set(heard.sessions) == {session}


def test_a_plain_session_has_no_such_events(engine: sa.Engine) -> None:
    with Session(engine) as plain:
        for name in NAMES:
            for target in (Session, sessionmaker(engine), plain):
                with pytest.raises((sa.exc.InvalidRequestError, AttributeError)):
                    event.listen(target, name, print)


def test_a_misspelt_event_is_refused() -> None:
    with pytest.raises(sa.exc.InvalidRequestError, match="lock_aquired"):
        event.listen(LockingSession, "lock_aquired", print)


def test_a_listener_can_take_its_arguments_by_name_and_be_called_once(engine: sa.Engine) -> None:
    reported: list[dict[str, Any]] = []
    with LockingSession(engine) as session:
        event.listen(session, "lock_acquired", lambda **how: reported.append(how), named=True)
        event.listen(session, "lock_acquired", lambda *_: reported.append({}), once=True)
        session.get_one_entity(Order, 1, ForUpdate)
        session.rollback()
        session.get_one_entity(Order, 2, ForUpdate)
    assert [sorted(how) for how in reported if how] == [
        ["document", "lock", "session", "waited"]
    ] * 2
    assert reported.count({}) == 1


def test_the_decorator_works(engine: sa.Engine) -> None:
    heard = Heard()
    session = LockingSession(engine)
    event.listens_for(session, "locks_released")(heard.locks_released)
    use(session)
    assert heard.names == (0, 0, 1)


@in_a_loop
async def test_an_async_session_by_what_it_wraps(documents: Database) -> None:
    (driver,) = DRIVERS["sqlite"]
    async with connected(url_for(documents, driver)) as engine:
        make = async_sessionmaker(engine, class_=AsyncLockingSession)
        async with make() as session, make() as other:
            with hearing(session.sync_session) as heard, hearing(LockingSession) as all_heard:
                for one in (session, other):
                    await one.get_one_entity(Order, 1, ForUpdate)
                    await one.commit()
    assert heard.names == (1, 0, 1)
    assert all_heard.names == (2, 0, 2)


OWN = ("after_begin", "before_flush", "after_commit", "before_commit", "after_transaction_end")


@pytest.mark.parametrize("listened_to", [LockingSession, Session, None])
def test_the_events_of_sqlalchemy_are_reported_as_ever(
    engine: sa.Engine, listened_to: type[Session] | None
) -> None:
    reported: list[str] = []
    session = LockingSession(engine)
    target = listened_to or session
    listeners = {name: lambda *_, name=name: reported.append(name) for name in OWN}
    for name, listener in listeners.items():
        event.listen(target, name, listener)
    try:
        with session:
            session.add(Customer(id=9, name="new"))
            session.commit()
    finally:
        for name, listener in listeners.items():
            event.remove(target, name, listener)
    assert reported == [
        "before_commit",
        "before_flush",
        "after_begin",
        "after_transaction_end",
        "after_commit",
        "after_transaction_end",
    ]  # the flush has one of its own
