"""No text contains a key with line breaks or escape codes, or a very long key, unescaped or in full.

This covers errors, log records, warnings, spans and the records of the testing kit.
"""

from __future__ import annotations

import logging
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import Engine, ForeignKey, Integer, String, create_engine, event, select, update
from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, sessionmaker

import sa_doclock
from sa_doclock import (
    DocLockError,
    DocumentGate,
    LockingSession,
    LockLost,
    LockMisuse,
    LockNotAvailable,
    LockOptions,
    LockOrderViolation,
    LockUpgradeRefused,
    StaleDocument,
    UnlockedWrite,
    UnsavedChanges,
    WrongIsolation,
    claim_each,
)
from sa_doclock.core.transaction import add_document
from sa_doclock.keys import key_text
from sa_doclock.opentelemetry import instrument, uninstrument
from sa_doclock.testing import assert_locked, recorded_locks
from tests.support.rows import rows
from tests.support.waits import wait_until

pytestmark = pytest.mark.each_value

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
KEYS = {
    "forged": "a\nWARNING sa_doclock Order 1: \x1b[2J\x1b[1Agranted\r\n\u2028\u202e",
    "long": "a" * 100_000,
}


class Base(DeclarativeBase):
    pass


@sa_doclock.document(parts=("roads",))
class Country(Base):
    __tablename__ = "forged_country"
    code: Mapped[str] = mapped_column(String, primary_key=True)
    name: Mapped[str] = mapped_column(default="")
    version = mapped_column(Integer, nullable=False)
    roads: Mapped[list[Road]] = relationship(lambda: Road, back_populates="country")
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class Road(Base):
    __tablename__ = "forged_road"
    name: Mapped[str] = mapped_column(primary_key=True)
    country_code: Mapped[str] = mapped_column(ForeignKey(Country.code))
    length: Mapped[int] = mapped_column(default=0)
    country: Mapped[Country] = relationship(back_populates="roads")


class City(Base):
    __tablename__ = "forged_city"
    name: Mapped[str] = mapped_column(primary_key=True)


@pytest.fixture(params=list(KEYS.values()), ids=list(KEYS))
def key(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(tmp_path: Path, key: str) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/forged.db")
    Base.metadata.create_all(engine)
    with LockingSession(engine) as session:
        session.add_all([Country(code=key), Country(code="b"), City(name=key)])
        session.add(Road(name=key, country_code=key))
        session.commit()
    yield engine
    engine.dispose()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Check every log record of the test, including its fields."""
    with caplog.at_level(logging.DEBUG, "sa_doclock"):
        yield caplog
    records = caplog.get_records("call")
    assert records
    for record in records:
        assert_short(record.getMessage())
        assert_short(str(vars(record).get("document")))


def assert_short(text: str) -> None:
    assert text.isprintable()
    assert len(text) < 1_000


def held_elsewhere(engine: Engine, action: Callable[[LockingSession], object]) -> None:
    with closing(sqlite3.connect(str(engine.url.database), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with LockingSession(engine, lock_timeout=0) as session:
            action(session)


def not_available(engine: Engine, key: str) -> None:
    held_elsewhere(engine, lambda session: session.get_entity(Country, key, ForUpdate))


def not_available_in_a_list(engine: Engine, key: str) -> None:
    held_elsewhere(engine, lambda session: session.get_entities(Country, [key], ForUpdate))


def named_lock_not_available(engine: Engine, key: str) -> None:
    held_elsewhere(engine, lambda session: session.lock_key(key))


def no_such_row(engine: Engine, key: str) -> None:
    with LockingSession(engine) as session:
        session.get_one_entity(Country, f"{key}!", ForUpdate)


def no_such_row_in_a_block(engine: Engine, key: str) -> None:
    with LockingSession(engine) as session, session.locked_documents(Country, [f"{key}!"]):
        pytest.fail("the block was entered")


def stale(engine: Engine, key: str) -> None:
    with LockingSession(engine) as session:
        session.get_entity(Country, key, ForUpdate, version=7)


def stale_without_a_lock(engine: Engine, key: str) -> None:
    with LockingSession(engine) as session:
        session.get_entity(Country, key, version=7)


def version_of_a_wrong_type(engine: Engine, key: str) -> None:
    with LockingSession(engine) as session:
        session.get_entity(Country, key, ForUpdate, version=key)


def version_of_nothing(engine: Engine, key: str) -> None:
    with LockingSession(engine) as session:
        session.get_entity(City, key, ForUpdate, version=key)


def unsaved_changes(engine: Engine, key: str) -> None:
    with LockingSession(engine) as session:
        session.get_one(Country, key).name = "x"
        session.get_entity(Country, key, ForUpdate)


def upgrade(engine: Engine, key: str) -> None:
    with LockingSession(engine) as session:
        session.get_entity(Country, key, SharedRead)
        session.get_entity(Country, key, ForUpdate)


def wrong_isolation(engine: Engine, key: str) -> None:
    with LockingSession(engine) as session:
        session.get_entity(Country, "b", SharedRead)
        session.get_entity(Country, key, ForUpdate)


def wrong_order(engine: Engine, key: str) -> None:
    with LockingSession(engine, lock_order=[City, Country]) as session:
        session.get_entity(Country, key, ForUpdate)
        session.get_entity(City, key, ForUpdate)


def unlocked_write(engine: Engine, key: str) -> None:
    with LockingSession(engine, guard_tracing=True) as session:
        session.get_one(Country, key).name = "x"
        session.commit()


def unlocked_write_of_a_part(engine: Engine, key: str) -> None:
    with LockingSession(engine) as session:
        session.get_one(Road, key).length = 7
        session.commit()


def unlocked_statement(engine: Engine, key: str) -> None:
    with LockingSession(engine) as session:
        session.execute(update(Road).where(Road.name == key).values(length=7))


def lock_within_a_lock(engine: Engine, key: str) -> None:
    with LockingSession(engine) as session:
        event.listen(session, "do_orm_execute", lambda _: session.lock_key("other"))
        session.get_entity(Country, key, ForUpdate)


def ended_by_another(engine: Engine, key: str) -> None:
    with LockingSession(engine) as session:
        found = session.get_one_entity(Country, key, ForUpdate)
        session.connection().connection.driver_connection.rollback()  # type: ignore[union-attr]
        found.name = "x"
        session.commit()


def held_for_too_long(engine: Engine, key: str) -> None:
    with LockingSession(engine, hold_limit=0.001) as session:
        found = session.get_one_entity(Country, key, ForUpdate)
        wait_until(lambda: not session.held_locks)
        found.name = "x"
        session.commit()


def second_session_at_a_gate(engine: Engine, key: str) -> None:
    gate = DocumentGate()
    small = create_engine(engine.url, pool_size=1, max_overflow=0)
    with LockingSession(small, gate=gate) as one, LockingSession(small, gate=gate) as two:
        one.get_entity(Country, key, ForUpdate)
        try:
            two.get_entity(Country, "b", ForUpdate)
        finally:
            one.rollback()


def claim_that_is_over(engine: Engine, key: str) -> None:
    claims = claim_each(
        sessionmaker(engine, class_=LockingSession), select(City).where(City.name == key)
    )
    (claim,) = list(claims)
    with claim:
        pytest.fail("the block was entered")


def part_of_a_named_key(_: Engine, key: str) -> None:
    sa_doclock.doclock_key([key])  # type: ignore[arg-type]


def wrong_type_of_a_named_key(engine: Engine, key: str) -> None:
    with LockingSession(engine) as session:
        session.lock_key([key])  # type: ignore[arg-type]


def named_key_with_nul(engine: Engine, key: str) -> None:
    with LockingSession(engine) as session:
        session.lock_key(f"{key}\0")


def nobody_has_locked_it(engine: Engine, key: str) -> None:
    with assert_locked(Country, key), LockingSession(engine) as session:
        session.get_entity(City, key, ForUpdate)


def key_of_another_shape(engine: Engine, key: str) -> None:
    with LockingSession(engine) as session:
        session.get_entity(Country, (key, key), ForUpdate)


FAILURES: dict[Callable[[Engine, str], None], type[Exception]] = {
    not_available: LockNotAvailable,
    not_available_in_a_list: LockNotAvailable,
    named_lock_not_available: LockNotAvailable,
    no_such_row: NoResultFound,
    no_such_row_in_a_block: NoResultFound,
    stale: StaleDocument,
    stale_without_a_lock: StaleDocument,
    version_of_a_wrong_type: TypeError,
    version_of_nothing: LockMisuse,
    unsaved_changes: UnsavedChanges,
    upgrade: LockUpgradeRefused,
    wrong_isolation: WrongIsolation,
    wrong_order: LockOrderViolation,
    unlocked_write: UnlockedWrite,
    unlocked_write_of_a_part: UnlockedWrite,
    unlocked_statement: UnlockedWrite,
    lock_within_a_lock: LockMisuse,
    ended_by_another: LockLost,
    held_for_too_long: LockLost,
    second_session_at_a_gate: LockMisuse,
    claim_that_is_over: LockMisuse,
    part_of_a_named_key: TypeError,
    wrong_type_of_a_named_key: TypeError,
    named_key_with_nul: ValueError,
    nobody_has_locked_it: AssertionError,
    key_of_another_shape: ValueError,
}


@pytest.mark.parametrize(("fails", "kind"), FAILURES.items(), ids=lambda one: one.__name__)
def test_an_error_has_it_shortened(
    engine: Engine,
    key: str,
    fails: Callable[[Engine, str], None],
    kind: type[Exception],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "sa_doclock"), pytest.raises(kind) as caught:
        fails(engine, key)
    text = str(caught.value.args[0])
    assert "'a" in text
    assert key not in text
    for line in text.split("\n  ") if kind is AssertionError else [text]:
        assert_short(line)  # the testing kit prints a line for each lock
    if isinstance(caught.value, DocLockError):
        assert_short(caught.value.reason)
    for record in caplog.records:
        assert_short(record.getMessage())


def subclasses(kind: type[DocLockError]) -> Iterator[type[DocLockError]]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


@pytest.mark.parametrize("entity", [Country, None])
@rows("kind", [*subclasses(DocLockError)], ids=lambda kind: kind.__name__)
def test_every_error_names_its_document_by_it(
    key: str, kind: type[DocLockError], entity: type[Any] | None
) -> None:
    error = kind("no")
    add_document(error, entity, key, ForUpdate, "sqlite")
    assert key_text(key) in str(error)
    assert_short(error.reason)
    assert error.ident == key  # unchanged, for the program


@pytest.mark.usefixtures("log")
def test_records_of_what_is_granted_held_and_released(engine: Engine, key: str) -> None:
    with recorded_locks() as locks, LockingSession(engine, warn_held_after=0.001) as session:
        session.get_entity(Country, key, ForUpdate)
        session.get_entities(City, [key], ForUpdate)
        session.lock_key(key)
        session.scalars(session.entity_set(Country, ForUpdate)).all()
        session.commit()
    assert len(locks) == 4
    for one in locks:
        assert_short(str(one))


@pytest.mark.usefixtures("log")
def test_the_guard_that_only_warns(engine: Engine, key: str) -> None:
    with (
        warnings.catch_warnings(record=True) as caught,
        LockingSession(engine, guard="warn") as session,
    ):
        warnings.simplefilter("always")
        session.get_one(Road, key).length = 7
        session.commit()
    assert caught
    for one in caught:
        assert_short(str(one.message))


def test_spans(engine: Engine, key: str) -> None:
    exporter, tracers = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    instrument(keys=True, tracer_provider=tracers)
    try:
        with LockingSession(engine) as session:
            session.get_entity(Country, key, ForUpdate)
            session.get_entities(City, [key, "b"], ForUpdate)
            session.lock_key(key)
    finally:
        uninstrument()
    one, many, named = [span.attributes or {} for span in exporter.get_finished_spans()]
    assert one["doclock.key"] == named["doclock.key"] == key_text(key)
    assert many["doclock.keys"] == (key_text(key),)
