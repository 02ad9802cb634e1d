"""WaitLimit: what is left after an error, and what a target asks to lock, with no server."""

from __future__ import annotations

from pathlib import Path

import pymysql
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from sa_doclock.core.documents import mapper_of
from sa_doclock.core.locking import ManyByKey, WaitLimit
from sa_doclock.core.session import context_of
from sa_doclock.core.transaction import LockRequest
from sa_doclock.dialects import strategy_classes
from sa_doclock.dialects.base import LockStrategy
from tests.support.models import Base, Order
from tests.support.rows import rows

ForUpdate = LockOptions.ForUpdate
NoWait, SkipLocked = ForUpdate | LockOptions.NoWait, ForUpdate | LockOptions.SkipLocked
#: ER_LOCK_WAIT_TIMEOUT is the server's own limit of a wait, ER_QUERY_TIMEOUT that of a statement.
WAIT, STATEMENT = 1205, 3024


def mysql() -> LockStrategy:
    dialect = sa.create_engine("mysql+pymysql://").dialect
    return strategy_classes()["mysql"](dialect)


def error_of(kind: type[DBAPIError], code: int) -> DBAPIError:
    return kind("SELECT", {}, pymysql.err.OperationalError(code, "of a test"))


def refused(code: int) -> DBAPIError:
    return LockNotAvailable(
        "held", statement=None, params=None, orig=pymysql.err.OperationalError(code, "of a test")
    )


AGAIN = {
    "the server's limit is shorter": (ForUpdate, 5.0, refused(WAIT), 2.0, (ForUpdate, 5.0, 3.0)),
    "and nothing is left": (ForUpdate, 5.0, refused(WAIT), 5.0, None),
    "and there is no other": (ForUpdate, None, refused(WAIT), 2.0, None),
    "a slow statement": (
        *(ForUpdate, None, error_of(OperationalError, STATEMENT), 2.0),
        (NoWait, None, 0.0),
    ),
    "a slow statement with a limit": (
        *(ForUpdate, 5.0, error_of(OperationalError, STATEMENT), 2.0),
        (NoWait, 5.0, 5.0),
    ),
    "our limit, too short for a busy server": (
        *(ForUpdate, 0.1, refused(STATEMENT), 0.1),
        (NoWait, 0.25, 0.25),
    ),
    "our limit": (ForUpdate, 5.0, refused(STATEMENT), 5.0, None),
    "without a wait": (NoWait, None, error_of(OperationalError, STATEMENT), 2.0, None),
    "a slow statement that skips": (
        *(SkipLocked, None, error_of(OperationalError, STATEMENT), 2.0),
        None,
    ),
    "another error": (ForUpdate, 5.0, error_of(OperationalError, 1064), 0.0, None),
}


@rows("what", AGAIN)
def test_one_more_try(what: str) -> None:
    lock, seconds, error, waited, expected = AGAIN[what]
    again = WaitLimit(mysql(), lock, seconds).again(error, waited)
    found = None if again is None else (again.lock, again.seconds, again.left())
    assert found == expected


def test_the_tries_of_one_statement_share_its_time() -> None:
    limit = WaitLimit(mysql(), ForUpdate, 5.0).again(refused(WAIT), 2.0)
    assert limit is not None
    assert limit.again(refused(WAIT), 3.0) is None


def test_asking_what_is_held_changes_nothing(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/held.db")
    Base.metadata.create_all(engine)
    mapper = mapper_of(Order)
    with LockingSession(engine) as session:
        session.add_all(Order(id=ident, total=0) for ident in (1, 2, 3))
        session.commit()
        session.get_entity(Order, 2, ForUpdate)
        keys = [(1,), (2,), (3,)]
        request = LockRequest(Order, None, ForUpdate, None, mapper, keys)
        target = ManyByKey[Order](context_of(session), request)
        before = dict(vars(target))
        for _ in range(2):
            asked = target.not_held()
            assert asked is not None
            assert asked.keys == [(1,), (3,)]
        assert vars(target) == before
        session.get_entities(Order, [1, 3], ForUpdate)
        assert target.not_held() is None
