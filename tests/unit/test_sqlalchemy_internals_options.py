"""Loader options, which are private objects of SQLAlchemy, and which of them would lock details too.

The library reads ``context``, and of its elements ``strategy``, ``path.path``, ``local_opts`` and
``_extra_criteria``; the ``strategy`` of a wildcard; the ``where_criteria`` of with_loader_criteria(); ``_with_options`` of the statement.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event, select
from sqlalchemy.orm import (
    DeclarativeBase,
    Load,
    Mapped,
    Session,
    aliased,
    contains_eager,
    defaultload,
    defer,
    immediateload,
    joinedload,
    lazyload,
    load_only,
    mapped_column,
    query_expression,
    raiseload,
    selectin_polymorphic,
    selectinload,
    subqueryload,
    undefer,
    undefer_group,
    with_expression,
    with_loader_criteria,
)

from sa_doclock import LockingSession, LockNotSupported, LockOptions, with_lock
from sa_doclock.core.statements import relationships_with_options
from sa_doclock.sqlalchemy_internals import (
    autoflush,
    execute_listeners,
    expressions_of,
    narrowed,
    narrowed_by,
    options_of,
    reads_only_some,
    undefers,
    with_options,
    without_options,
)
from tests.support.models import Contract, Lease, Line, Order
from tests.support.rows import rows

alias = aliased(Order)

REFUSED: dict[str, tuple[Any, str]] = {
    "joinedload": (joinedload(Order.lines), r"joinedload\(lines\)"),
    "joinedload inner": (joinedload(Order.lines, innerjoin=True), r"joinedload\(lines\)"),
    "joinedload and_": (joinedload(Order.lines.and_(Line.value > 5)), r"joinedload\(lines\)"),
    "joinedload of_type": (joinedload(Order.lines.of_type(Line)), r"joinedload\(lines\)"),
    "joinedload of an alias": (joinedload(alias.lines), r"joinedload\(lines\)"),
    "joinedload of a subclass": (joinedload(Lease.clauses), r"joinedload\(clauses\)"),
    "joinedload, more below": (
        joinedload(Order.lines).selectinload(Line.order),
        r"joinedload\(lines\)",
    ),
    "subqueryload": (subqueryload(Order.lines), r"subqueryload\(lines\)"),
    "Load.joinedload": (Load(Order).joinedload(Order.lines), r"joinedload\(lines\)"),
    "Load.subqueryload": (Load(Order).subqueryload(Order.lines), r"subqueryload\(lines\)"),
    "Load.joinedload(*)": (Load(Order).joinedload("*"), r"joinedload\(\*\)"),
    "joinedload(*)": (joinedload("*"), r"joinedload\(\*\)"),
    "subqueryload(*)": (subqueryload("*"), r"subqueryload\(\*\)"),
}
ALLOWED: dict[str, tuple[Any, set[str]]] = {
    "selectinload": (selectinload(Order.lines), {"lines"}),
    "lazyload": (lazyload(Order.lines), {"lines"}),
    "lazyload(*)": (lazyload("*"), {"*"}),
    "immediateload": (immediateload(Order.lines), {"lines"}),
    "raiseload": (raiseload(Order.lines), {"lines"}),
    "raiseload(*)": (raiseload("*"), {"*"}),
    "contains_eager": (contains_eager(Order.lines), {"lines"}),
    "contains_eager alias": (contains_eager(Order.lines.of_type(aliased(Line))), {"lines"}),
    "joined below selectin": (selectinload(Order.lines).joinedload(Line.order), {"lines"}),
    "joined below default": (defaultload(Order.lines).joinedload(Line.order), set()),
    "subquery below selectin": (selectinload(Order.lines).subqueryload(Line.order), {"lines"}),
    "joined(*) below selectin": (selectinload(Order.lines).joinedload("*"), {"lines"}),
    "defaultload": (defaultload(Order.lines), set()),
    "defer": (defer(Order.total), set()),
    "undefer": (undefer(Order.remark), set()),
    "undefer(*)": (undefer("*"), set()),
    "undefer_group": (undefer_group("texts"), set()),
    "load_only": (load_only(Order.id), set()),
    "criteria": (with_loader_criteria(Line, Line.value > 5), set()),
    "polymorphic": (selectin_polymorphic(Contract, [Lease]), set()),
    "expression": (with_expression(Order.remark, Order.total), set()),
    "Load": (Load(Order), set()),
}


@pytest.mark.parametrize(("option", "words"), REFUSED.values(), ids=REFUSED)
def test_details_by_the_locking_statement_are_refused_in_a_set(
    session: LockingSession, sent: list[str], option: Any, words: str
) -> None:
    statement = select(Order)
    with pytest.raises(LockNotSupported, match=words):
        with_lock(statement.options(option), LockOptions.ForUpdate)
    added_later = with_lock(statement, LockOptions.ForUpdate).options(option)
    with pytest.raises(LockNotSupported, match=words):
        session.execute(added_later)
    assert sent == []


@pytest.mark.parametrize(("option", "words"), REFUSED.values(), ids=REFUSED)
def test_details_by_the_locking_statement_are_refused_in_get_entity(
    session: LockingSession, sent: list[str], option: Any, words: str
) -> None:
    with pytest.raises(LockNotSupported, match=words):
        session.get_entity(Order, 1, LockOptions.ForUpdate, options=[option])
    assert sent == []


@rows(("option", "relationships"), ALLOWED.values(), ids=ALLOWED)
def test_what_reads_details_by_another_statement_is_allowed(
    option: Any, relationships: set[str]
) -> None:
    statement = with_lock(select(Order).options(option), LockOptions.ForUpdate)
    assert option in options_of(statement)
    chosen = relationships_with_options([option])
    assert {getattr(one, "key", one) for one in chosen} == relationships


def test_our_options_give_way_to_the_users_and_to_no_other() -> None:
    ours = selectinload(Order.lines)
    theirs = raiseload(Order.lines)
    statement = select(Order).options(ours)
    assert options_of(without_options(statement, [ours])) == (ours,)
    assert options_of(without_options(statement.options(theirs), [ours])) == (theirs,)
    other = undefer(Order.remark)
    assert options_of(without_options(statement.options(other), [ours])) == (ours, other)
    assert options_of(statement) == (ours,)


def test_the_statement_cache_knows_the_copy_from_the_original() -> None:
    ours, theirs = selectinload(Order.lines), raiseload(Order.lines)
    statement = select(Order).options(ours, theirs)
    key = statement._generate_cache_key()
    assert key is not None
    assert without_options(statement, [ours])._generate_cache_key() != key


def test_options_that_undefer() -> None:
    options = {name: option for name, (option, _) in {**REFUSED, **ALLOWED}.items()}
    found = {name for name, option in options.items() if undefers([option])}
    assert found == {"undefer", "undefer(*)", "undefer_group", "load_only", "expression"}


def test_listeners_of_a_session(session: LockingSession) -> None:
    assert not execute_listeners(session)
    event.listen(session, "do_orm_execute", test_listeners_of_a_session)
    assert execute_listeners(session)
    event.remove(session, "do_orm_execute", test_listeners_of_a_session)
    assert not execute_listeners(session)
    with listening_to_all():
        assert execute_listeners(session)


@contextmanager
def listening_to_all() -> Iterator[None]:
    def listen(_: Any) -> None:
        """Leave the statement unchanged."""

    event.listen(Session, "do_orm_execute", listen)
    try:
        yield
    finally:
        event.remove(Session, "do_orm_execute", listen)


def test_the_options_of_a_statement_are_replaced() -> None:
    statement = select(Order).options(selectinload(Order.lines))
    assert options_of(with_options(statement, [])) == ()
    assert len(options_of(statement)) == 1


@pytest.mark.parametrize(
    ("option", "found"),
    [
        (joinedload(Order.lines), set()),
        (contains_eager(Order.lines), {"lines"}),
        (contains_eager(Order.lines.of_type(aliased(Line))), {"lines"}),
        (joinedload(Order.lines.and_(Line.value > 5)), {"lines"}),
        (joinedload(Order.lines).joinedload(Line.order.and_(Order.id > 5)), {"order"}),
        (with_loader_criteria(Line, Line.value > 5), {"*"}),
        (raiseload("*"), set()),
    ],
)
def test_narrowed_by_finds_the_relationships_whose_members_may_be_left_out(
    option: Any, found: set[str]
) -> None:
    assert {getattr(one, "key", one) for one in narrowed_by([option])} == found


# --------------------------------------------------------------------------------------------------
# ``_sa_orm_load_options``: what a Query says about the statement it executes.


class Base(DeclarativeBase):
    pass


class Thing(Base):
    __tablename__ = "thing"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(default="")
    given: Mapped[int | None] = query_expression()


class Noting(Session):
    """A session that keeps the execution options of its last statement."""

    options: dict[str, Any]

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        self.options = dict(kwargs.get("execution_options") or {})
        return super().execute(*args, **kwargs)


@pytest.fixture
def session_load() -> Any:
    engine = sa.create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Noting(engine) as session:
        session.add(Thing(id=1))
        session.commit()
        yield session


@pytest.mark.parametrize("flushes", [True, False])
def test_a_query_says_whether_it_flushes(session_load: Noting, flushes: bool) -> None:
    session_load.query(Thing).autoflush(flushes).all()
    thing = Thing(id=2)
    session_load.add(thing)
    autoflush(session_load, session_load.options)
    assert (thing in session_load.new) is not flushes


@pytest.mark.parametrize("entity", [Thing, aliased(Thing)])
def test_what_with_expression_gives_is_found(entity: Any) -> None:
    given = with_expression(entity.given, entity.id + 1)
    ((found, name, expression),) = expressions_of(options_of(sa.select(entity).options(given)))
    assert (found.entity, name) == (entity, "given")
    assert str(expression) == str(entity.id + 1)


@pytest.mark.parametrize("tuples", [True, False])
def test_a_query_of_objects_gives_them_without_the_columns_that_were_added(
    session_load: Noting, tuples: bool
) -> None:
    class Adding(Noting):
        def execute(self, statement: Any, *args: Any, **kwargs: Any) -> Any:
            result = super().execute(statement.add_columns(Thing.name), *args, **kwargs)
            return narrowed(result, 1, self.options, alone=True)

    with Adding(session_load.get_bind()) as adding:
        query: Any = adding.query(Thing)
        (found,) = query.only_return_tuples(tuples).all()
    assert isinstance(found, Thing) is not tuples


def test_refresh_of_some_attributes_says_so(session_load: Noting) -> None:
    seen = []

    class Seeing(Session):
        def execute(self, statement: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(reads_only_some(statement))
            return super().execute(statement, *args, **kwargs)

    with Seeing(session_load.get_bind()) as seeing:
        thing = seeing.get_one(Thing, 1)
        seeing.refresh(thing)
        seeing.refresh(thing, ["name"])
        seeing.execute(sa.select(Thing.__table__))
    assert seen[-3:] == [False, True, False]
