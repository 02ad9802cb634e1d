"""``_sa_orm_load_options``: what a Query says of the statement that it executes."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    aliased,
    mapped_column,
    query_expression,
    with_expression,
)

from sa_doclock.sqlalchemy_internals import (
    autoflush,
    expressions_of,
    narrowed,
    options_of,
    reads_only_some,
)


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
def session() -> Any:
    engine = sa.create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Noting(engine) as session:
        session.add(Thing(id=1))
        session.commit()
        yield session


@pytest.mark.parametrize("flushes", [True, False])
def test_a_query_says_whether_it_flushes(session: Noting, flushes: bool) -> None:
    session.query(Thing).autoflush(flushes).all()
    thing = Thing(id=2)
    session.add(thing)
    autoflush(session, session.options)
    assert (thing in session.new) is not flushes


@pytest.mark.parametrize("entity", [Thing, aliased(Thing)])
def test_what_with_expression_gives_is_found(entity: Any) -> None:
    given = with_expression(entity.given, entity.id + 1)
    ((found, name, expression),) = expressions_of(options_of(sa.select(entity).options(given)))
    assert (found.entity, name) == (entity, "given")
    assert str(expression) == str(entity.id + 1)


@pytest.mark.parametrize("tuples", [True, False])
def test_a_query_of_objects_gives_them_without_the_columns_that_were_added(
    session: Noting, tuples: bool
) -> None:
    class Adding(Noting):
        def execute(self, statement: Any, *args: Any, **kwargs: Any) -> Any:
            result = super().execute(statement.add_columns(Thing.name), *args, **kwargs)
            return narrowed(result, 1, self.options, alone=True)

    with Adding(session.get_bind()) as adding:
        query: Any = adding.query(Thing)
        (found,) = query.only_return_tuples(tuples).all()
    assert isinstance(found, Thing) is not tuples


def test_refresh_of_some_attributes_says_so(session: Noting) -> None:
    seen = []

    class Seeing(Session):
        def execute(self, statement: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(reads_only_some(statement))
            return super().execute(statement, *args, **kwargs)

    with Seeing(session.get_bind()) as seeing:
        thing = seeing.get_one(Thing, 1)
        seeing.refresh(thing)
        seeing.refresh(thing, ["name"])
        seeing.execute(sa.select(Thing.__table__))
    assert seen[-3:] == [False, True, False]
