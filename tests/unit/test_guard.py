"""New headers with keys from the database, in one flush with rows that need the full check."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest.mock import create_autospec

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, ForeignKey, create_engine, event, inspect
from sqlalchemy.exc import SAWarning
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    make_transient_to_detached,
    mapped_column,
    relationship,
)

from sa_doclock import (
    LockingSession,
    LockOptions,
    UnlockedWrite,
    UnlockedWriteWarning,
    UnsavedChanges,
    document,
)
from sa_doclock.caller import warn_program
from sa_doclock.core.documents.mapping import mapper_of
from sa_doclock.guard.full_check import new_key_of
from sa_doclock.guard.rules import rules_for
from tests.integration.guard.models import Customer, Line, Order
from tests.support.models import Customer as WarnedLineCustomer


class Base(DeclarativeBase):
    """Tables for these tests only."""


@document(parts=["pages"])
class Book(Base):
    __tablename__ = "nh_book"
    id: Mapped[int] = mapped_column(primary_key=True)
    pages: Mapped[list[Page]] = relationship()


class Page(Base):
    __tablename__ = "nh_page"
    id: Mapped[int] = mapped_column(primary_key=True)
    book_id: Mapped[int | None] = mapped_column(ForeignKey("nh_book.id"))
    number: Mapped[int] = mapped_column(default=0)


@document(parts=["tracks"])
class Album(Base):
    __tablename__ = "nh_album"
    id: Mapped[int] = mapped_column(primary_key=True)
    tracks: Mapped[list[Track]] = relationship()


class Track(Base):
    __tablename__ = "nh_track"
    id: Mapped[int] = mapped_column(primary_key=True)
    album_id: Mapped[int | None] = mapped_column(ForeignKey("nh_album.id"))


@pytest.fixture
def engine_new_headers() -> Engine:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with LockingSession(engine) as session:
        session.add_all([Book(id=1, pages=[Page(id=1)]), Track(id=1), Page(id=2)])
        session.commit()
    return engine


def test_they_are_new_after_a_row_that_was_warned_of(engine_new_headers: Engine) -> None:
    with LockingSession(engine_new_headers, guard="warn", autoflush=False) as session:
        session.get_one(Page, 1).number = 7
        session.add_all([Album(tracks=[session.get_one(Track, 1)]), Book(pages=[Page()])])
        with pytest.warns(UnlockedWriteWarning) as found:
            session.flush()
    assert [str(one.message).partition(" without")[0] for one in found] == [
        "Page rows would be changed in 'number'"
    ]


def test_they_are_new_one_class_after_another(engine_new_headers: Engine) -> None:
    with LockingSession(engine_new_headers, guard="raise") as session:
        page, track = session.get_one(Page, 2), session.get_one(Track, 1)
        session.add_all([Album(tracks=[track]), Book(pages=[page, Page()])])
        session.flush()
        assert track.album_id is not None
        assert page.book_id is not None


def test_a_key_that_a_listener_has_replaced_is_no_new_one(engine_new_headers: Engine) -> None:
    with LockingSession(engine_new_headers, guard="raise") as session:
        page, track = session.get_one(Page, 2), session.get_one(Track, 1)
        session.add_all([Album(tracks=[track]), Book(id=1)])

        def replace(_mapper: object, _connection: object, book: Book) -> None:
            book.id = 9

        event.listen(Book, "before_insert", replace)
        try:
            page.book_id = 1
            with pytest.raises(UnlockedWrite):
                session.flush()
        finally:
            event.remove(Book, "before_insert", replace)


# --------------------------------------------------------------------------------------------------
# The rules of the guard: what a row names, and what its deletion writes beyond its own document.


@pytest.mark.parametrize(("entity", "deletes"), [(Order, set()), (Customer, {"orders"})])
def test_own_parts_are_deleted_under_the_same_lock(entity: type[Any], deletes: set[str]) -> None:
    rules = rules_for(mapper_of(entity))
    assert rules is not None
    assert set(rules.deletes) == deletes


def test_a_part_whose_foreign_key_is_that_of_the_header_is_judged_without_other_rows() -> None:
    line, rules = Line(order_id=7), rules_for(mapper_of(Line))
    assert rules is not None
    assert rules.named is not None
    assert [*rules.named([inspect(line)])] == [(7,)]


@pytest.mark.parametrize(("changed", "key"), [("note", None), ("id", (2,))])
def test_only_a_header_whose_key_is_set_has_a_new_key(changed: str, key: object) -> None:
    order, rules = Order(id=1), rules_for(mapper_of(Order))
    make_transient_to_detached(order)
    setattr(order, changed, 2)
    assert rules is not None
    assert new_key_of(inspect(order), rules) == key


# --------------------------------------------------------------------------------------------------
# A part with a two-column foreign key: one column changed while the other is expired.


class UnsavedCompositeBase(DeclarativeBase):
    """The tables of orders of many tenants."""


@document(parts=["items"])
class UnsavedCompositeOrder(UnsavedCompositeBase):
    __tablename__ = "uc_order"
    tenant: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    items: Mapped[list[Item]] = relationship()


class Item(UnsavedCompositeBase):
    __tablename__ = "uc_item"
    id: Mapped[int] = mapped_column(primary_key=True)
    tenant: Mapped[int]
    number: Mapped[int]
    __table_args__ = (
        sa.ForeignKeyConstraint(["tenant", "number"], ["uc_order.tenant", "uc_order.number"]),
    )


@pytest.mark.parametrize("number", [1, 2])
def test_both_the_order_that_it_leaves_and_the_one_that_it_comes_to_have_it(
    tmp_path: Path, number: int
) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'orders.db'}")
    UnsavedCompositeBase.metadata.create_all(engine)
    with LockingSession(engine, autoflush=False) as session:
        with session.unguarded():
            session.add_all(
                [
                    UnsavedCompositeOrder(tenant=1, number=1),
                    UnsavedCompositeOrder(tenant=1, number=2),
                ]
            )
            session.add(Item(id=1, tenant=1, number=1))
            session.commit()
        item = session.get_one(Item, 1)
        session.commit()
        item.number = 2
        with pytest.raises(UnsavedChanges):
            session.get_document(UnsavedCompositeOrder, (1, number), LockOptions.ForUpdate)


# --------------------------------------------------------------------------------------------------
# A warning points at the program's line, whoever issues it.


class Note(UserWarning):
    """The category of a warning."""


def own_warning() -> None:
    warn_program("look", Note)


def python_warning() -> None:
    warnings.warn("look", Note, stacklevel=1)


def in_module(name: str, function: Callable[[], None]) -> Callable[[], None]:
    """Return the function as if another module had defined it."""
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__, {**globals(), "__name__": name})


each_warning = pytest.mark.parametrize("warn", [own_warning, python_warning])


@each_warning
@pytest.mark.parametrize(("module", "heard"), [("shop.orders", 0), ("shop.stock", 1)])
def test_a_filter_by_module_is_obeyed(warn: Any, module: str, heard: int) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", category=Note, module=r"shop\.orders$")
        in_module(module, warn)()
    assert len(caught) == heard


@each_warning
def test_once_for_each_line_is_once(warn: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        reported = in_module("shop.orders", warn)
        reported()
        reported()
    assert len(caught) == 1


@pytest.fixture
def engine() -> Iterator[sa.Engine]:
    engine = sa.create_engine("sqlite://")
    WarnedLineCustomer.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("kind", [Session, LockingSession])
def test_what_sqlalchemy_warns_of_in_a_commit(engine: sa.Engine, kind: type[Session]) -> None:
    with kind(engine) as session:
        session.add(WarnedLineCustomer(id=1, name="Ann"))
        session.flush()
        known = session.get_one(WarnedLineCustomer, 1)
        session.add(WarnedLineCustomer(id=1, name="Zoe"))  # the same key again
        with (
            pytest.warns(SAWarning, match="conflicts with persistent instance") as caught,
            pytest.raises(sa.exc.IntegrityError),
        ):
            session.commit()
        del known
    assert {warning.filename for warning in caught} == {__file__}


class Audited(LockingSession):
    """A session that does extra work on commit."""

    def commit(self) -> None:
        self.info["audited"] = True
        super().commit()


@pytest.mark.parametrize(
    "commit",
    [
        lambda session: session.commit(),
        lambda session: type(session).commit(session),
        LockingSession.commit,
    ],
    ids=["of the session", "of its class", "of LockingSession"],
)
@pytest.mark.parametrize("kind", [LockingSession, Audited])
def test_commit_is_a_method_like_others(
    engine: sa.Engine, kind: type[LockingSession], commit: Callable[[LockingSession], None]
) -> None:
    with kind(engine) as session:
        session.add(WarnedLineCustomer(id=1, name="Ann"))
        commit(session)
        assert not session.in_transaction()
        assert session.get(WarnedLineCustomer, 1) is not None


def test_a_subclass_may_do_more_in_it(engine: sa.Engine) -> None:
    with Audited(engine) as session:
        session.commit()
        assert session.info == {"audited": True}


def test_a_mock_of_a_session_can_commit() -> None:
    mock = create_autospec(LockingSession, instance=True)
    mock.commit()
    mock.commit.assert_called_once_with()
