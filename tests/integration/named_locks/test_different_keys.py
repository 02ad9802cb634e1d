"""Keys that are not the same are not one lock, whatever the server makes of their names."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession
from tests.integration.named_locks.keys import finds_taken

pytestmark = pytest.mark.not_databases("sqlite")  # one lock for the file

LONG = "a document with a very long name, " * 20

PAIRS = (
    ("user:ann", "user:Ann"),  # one name to MySQL
    ("cafe", "café"),
    ("strasse", "straße"),
    ("user", "user "),
    (LONG, LONG + "!"),
    (LONG.replace(" ", "-"), LONG.replace(" ", "-").upper()),
    ("it's", "it_s"),
    ("100%", "100%%"),
    ("日本", "日木"),
    ("\U0001f511" * 40, "\U0001f511" * 41),
    (":name", ":Name"),
)


@pytest.mark.parametrize(("one", "another"), PAIRS)
def test_they_are_two_locks(
    session: LockingSession, other: LockingSession, one: str, another: str
) -> None:
    session.lock_key(one)
    assert finds_taken(one)(other)
    assert not finds_taken(another)(other)
    other.lock_key(another)
    session.rollback()
    assert not finds_taken(one)(session)
    assert finds_taken(another)(session)


@pytest.mark.databases("mysql", "mariadb")
def test_the_server_is_shown_a_name_that_can_be_read(session: LockingSession) -> None:
    session.lock_key("order:42")
    session.lock_key("Order number " * 9)
    for name, holders in {"doclock.order:42": 1, "doclock.order:43": 0}.items():
        used = f"SELECT COUNT(IS_USED_LOCK('{name}'))"
        assert session.connection().exec_driver_sql(used).scalar() == holders


@pytest.mark.databases("mysql", "mariadb")
def test_the_programs_own_lock_of_that_name_is_another_and_stays(
    make_engine: Callable[..., sa.Engine], other: LockingSession
) -> None:
    engine = make_engine(pool_size=1, max_overflow=0, isolation_level="READ COMMITTED")
    with LockingSession(engine) as session:
        session.scalar(sa.text("SELECT GET_LOCK('user:42', 0)"))
        session.lock_key("user:43")
        other.lock_key("user:42", lock_timeout=0)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT RELEASE_LOCK('user:42')").scalar() == 1
