"""The primary key of a held header is changed: the document is held by both keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockOptions
from tests.integration.guard.models import City, Country, River
from tests.integration.guard.steps import hold, refused

pytestmark = pytest.mark.quick

Change = Callable[[LockingSession, Country], object]


@pytest.fixture(autouse=True)
def _with_foreign_keys(engine: sa.Engine) -> None:
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda new, _: new.execute("PRAGMA foreign_keys = ON"))


def set_attribute(session: LockingSession, country: Country) -> None:
    country.code = "cc"
    session.flush()


def set_attribute_of_loaded(session: LockingSession, country: Country) -> None:
    assert country.cities
    assert country.rivers
    country.code = "cc"
    session.flush()


def update_statement(session: LockingSession, country: Country) -> None:
    session.execute(sa.update(Country).where(Country.code == country.code).values(code="cc"))
    session.expunge_all()


def update_table(session: LockingSession, country: Country) -> None:
    table: Any = Country.__table__
    session.execute(sa.update(table).where(table.c.code == country.code).values(code="cc"))
    session.expunge_all()


CHANGES = {
    one.__name__: one
    for one in (set_attribute, set_attribute_of_loaded, update_statement, update_table)
}
each_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)


@each_change
def test_the_document_is_written_after_its_key_was_changed(
    session: LockingSession, stored: Callable[[Any, Any], Any], change: Change
) -> None:
    (country,) = hold(session, Country, "aa")
    change(session, country)
    country = session.get_one(Country, "cc")
    country.total = 1
    session.get_one(City, 1).value = 1
    session.get_one(River, 1).value = 1
    session.add(City(id=9, code="cc"))
    session.flush()
    session.execute(sa.update(City).where(City.code == "cc").values(value=2))
    assert session.held_locks[Country, ("cc",)] is LockOptions.ForUpdate
    assert session.get_entity(Country, "cc", LockOptions.ForUpdate) is country
    session.commit()
    assert stored(Country.total, "cc") == 1


def test_key_and_parts_are_changed_in_one_flush(session: LockingSession) -> None:
    (country,) = hold(session, Country, "aa")
    session.add(City(id=9, code="cc"))
    country.code = "cc"
    session.commit()


def test_another_document_is_refused_all_the_same(session: LockingSession) -> None:
    (country,) = hold(session, Country, "aa")
    country.code = "cc"
    session.flush()
    city = session.get_one(City, 2)
    city.value = 1
    with refused(session, Country, "bb"):
        session.flush()


def test_without_the_lock_a_key_cannot_be_changed(session: LockingSession) -> None:
    country = session.get_one(Country, "aa")
    country.code = "cc"
    with refused(session, Country, "aa", "'code'"):
        session.flush()


def test_a_rollback_to_a_savepoint_takes_the_new_key_back(session: LockingSession) -> None:
    session.begin()
    (country,) = hold(session, Country, "aa")
    with session.begin_nested() as savepoint:
        country.code = "cc"
        session.flush()
        savepoint.rollback()
    assert list(session.held_locks) == [(Country, ("aa",))]
    country.total = 1
    session.flush()
    session.add(Country(code="cc"))
    session.flush()


def test_the_key_of_a_new_document_is_changed(session: LockingSession) -> None:
    session.add(country := Country(code="dd"))
    session.flush()
    country.code = "ee"
    session.flush()
    session.add(City(id=9, code="ee"))
    country.total = 1
    session.commit()
