"""Configuring the mappers refuses impossible documents, with the path in the error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Column, Integer, Table, create_engine, inspect, select
from sqlalchemy.exc import AmbiguousForeignKeysError, ArgumentError, NoForeignKeysError
from sqlalchemy.orm import configure_mappers, relationship

from sa_doclock import (
    LockingSession,
    LockOptions,
    claim_each,
    document,
    explain_lock,
    with_lock,
)
from sa_doclock.core.documents.declare import document_root
from sa_doclock.core.documents.mapping import mapper_of
from tests.unit.mappings import COMPOSITION, World, paths, refers

pytestmark = [pytest.mark.each_value, pytest.mark.usefixtures("frozen_heap")]


@pytest.fixture
def world() -> Iterator[World]:
    with closing(World()) as world:
        yield world


def raises_text(text: str) -> Any:
    return pytest.raises(ArgumentError, match=re.escape(text))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("line", "the part 'line' is unknown: Order has no relationship 'line', only lines, cust"),
        ("lines.tax", "the part 'lines.tax' is unknown: Line has no relationship 'tax', only "),
        ("lines.taxes.rate", "the part 'lines.taxes.rate' is unknown: Tax has no relationship"),
        ("customer_id", "the part 'customer_id' is unknown"),  # a column is not a relationship
        ("Lines", "the part 'Lines' is unknown"),
        ("", "the part '' is unknown"),
        (".lines", "the part '.lines' is unknown"),
        ("lines.", "the part 'lines.' is unknown"),
        ("lines.order", "the part 'lines.order' leads back to Order"),
        ("lines.order.lines", "the part 'lines.order' leads back to Order"),
    ],
)
def test_a_path_that_leads_nowhere_or_back(world: World, path: str, text: str) -> None:
    world.order(path)
    with raises_text(f"@document on Order: {text}"):
        configure_mappers()


def test_a_right_path_beside_is_no_excuse(world: World) -> None:
    world.order("lines", "lines.taxes", "lines.tax")
    with raises_text("'lines.tax'"):
        configure_mappers()


def test_a_circle_further_down(world: World) -> None:
    world.map("Order", declare=document(parts=("a.b.a",)), a=relationship("A"))
    world.map("A", refers("order"), refers("b"), b=relationship("B", foreign_keys="B.a_id"))
    world.map("B", refers("a"), a=relationship("A", foreign_keys="A.b_id"))
    with raises_text("the part 'a.b.a' leads back to A"):
        configure_mappers()


def test_a_circle_of_compositions(world: World) -> None:
    world.map("Order", declare=document, a=relationship("A", cascade=COMPOSITION))
    b = relationship("B", foreign_keys="B.a_id", cascade=COMPOSITION)
    world.map("A", refers("order"), refers("b"), b=b)
    world.map("B", refers("a"), a=relationship("A", foreign_keys="A.b_id", cascade=COMPOSITION))
    with raises_text("the part 'a.b.a' leads back to A"):
        configure_mappers()


@pytest.mark.parametrize("path", ["seen", "lines.seen"])
def test_what_is_only_looked_at(world: World, path: str) -> None:
    seen = relationship("Line", viewonly=True)
    world.map("Order", declare=document(parts=(path,)), lines=relationship("Line"), seen=seen)
    again = relationship("Tax", viewonly=True)
    world.map("Line", refers("order"), seen=again)
    world.map("Tax", refers("line"))
    with raises_text(f"the part '{path}' is view-only"):
        configure_mappers()


def test_a_part_that_is_a_document_of_its_own(world: World) -> None:
    world.order("lines", "customer")
    document(world.made[-1])
    with raises_text("the part 'customer' leads to Customer, a document of its own"):
        configure_mappers()


@pytest.mark.parametrize("path", ["customer", "lines"])
def test_two_headers_that_claim_one_class(world: World, path: str) -> None:
    world.order(path)
    names = {"customer": ("Customer", refers("customer")), "lines": ("Line", refers("line"))}
    target, column = names[path]
    world.map("Cart", column, declare=document(parts=("goods",)), goods=relationship(target))
    with pytest.raises(ArgumentError, match="a part has one header") as caught:
        configure_mappers()
    for named in ("Order", "Cart", "'goods'", f"'{path}'", target):
        assert named in str(caught.value)


def test_two_headers_that_claim_one_table(world: World) -> None:
    world.map("Order", declare=document(parts=("lines",)), lines=relationship("Line"))
    line = world.map("Line", refers("order"), refers("cart"))
    second: Any = type("Good", (), {})
    world.registry.map_imperatively(second, inspect(line).local_table)
    world.made.append(second)
    world.map("Cart", declare=document(parts=("goods",)), goods=relationship("Good"))
    with pytest.raises(ArgumentError, match="a part has one header"):
        configure_mappers()


def test_one_header_may_have_a_class_as_two_parts(world: World) -> None:
    both = {
        name: relationship("Line", foreign_keys=f"Line.{name}_id") for name in ("sold", "returned")
    }
    order = world.map("Order", declare=document(parts=tuple(both)), **both)
    world.map("Line", refers("order", "sold_id"), refers("order", "returned_id"))
    assert paths(order) == ["sold", "returned"]


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ("lines", 'parts is a sequence of names: ("lines",), not "lines"'),
        (("lines", 3), "a part is the name of a relationship, not 3"),
        ((None,), "not None"),
        ([b"lines"], "not b'lines'"),
        (3, "not iterable"),
    ],
)
def test_parts_that_are_no_names(parts: Any, text: str) -> None:
    with pytest.raises(TypeError, match=re.escape(text)):
        document(parts=parts)


@pytest.mark.parametrize("thing", [3, "Order", lambda: None, object()])
def test_what_is_no_class(thing: Any) -> None:
    with pytest.raises(TypeError, match="@document is for a class"):
        document(thing)
    with pytest.raises(TypeError, match="@document is for a class"):
        document(parts=("lines",))(thing)


def test_a_class_that_is_mapped_already_is_reported_by_the_decorator(world: World) -> None:
    order = world.order()
    configure_mappers()
    with raises_text("'line' is unknown"):
        document(parts=("line",))(order)


def test_a_wrong_one_fails_nothing_that_is_configured_later(world: World) -> None:
    order = world.order("line")
    with raises_text("'line' is unknown"):
        configure_mappers()
    with closing(World()) as another:
        assert paths(another.order("lines")) == ["lines"]
        assert document_root(mapper_of(another.made[2])) is None
    with raises_text("'line' is unknown"):
        paths(order)


def test_two_wrong_ones_fail_nothing_that_is_configured_later(world: World) -> None:
    world.order("line")
    world.map("Letter", declare=document(parts=("page",)))
    with raises_text("@document on"):
        configure_mappers()
    with closing(World()) as another:
        assert paths(another.order("lines")) == ["lines"]


FOR_UPDATE = LockOptions.ForUpdate
FIRST_USES: dict[str, Callable[[LockingSession, Any], object]] = {
    "get_entity": lambda session, order: session.get_entity(order, 1),
    "get_document": lambda session, order: session.get_document(order, 1, FOR_UPDATE),
    "get_entities": lambda session, order: session.get_entities(order, [1], FOR_UPDATE),
    "locked": lambda session, order: session.locked(order, 1).__enter__(),
    "locked_documents": lambda session, order: session.locked_documents(order, [1]).__enter__(),
    "a set": lambda session, order: session.scalars(session.entity_set(order, FOR_UPDATE)),
    "with_lock": lambda session, order: session.scalars(with_lock(select(order), FOR_UPDATE)),
    "lock_order": lambda _, order: LockingSession(lock_order=[order]),
    "explain_lock": lambda session, order: explain_lock(session, order, FOR_UPDATE),
    "claim_each": lambda session, order: next(iter(claim_each(lambda: session, select(order)))),
}


def _misspelt(world: World) -> Any:
    return world.order("line")


def _without_foreign_key(world: World) -> Any:
    world.map("Line")
    return world.map("Order", declare=document, lines=relationship("Line"))


def _with_two_foreign_keys(world: World) -> Any:
    world.map("Line", refers("order", "sold_id"), refers("order", "returned_id"))
    return world.map("Order", declare=document, lines=relationship("Line"))


WRONG: dict[str, tuple[Callable[[World], Any], type[ArgumentError], str]] = {
    "misspelt part": (_misspelt, ArgumentError, "the part 'line' is unknown"),
    "no foreign key": (_without_foreign_key, NoForeignKeysError, "no foreign keys linking"),
    "two": (_with_two_foreign_keys, AmbiguousForeignKeysError, "multiple foreign key paths"),
}


@pytest.mark.parametrize("use", FIRST_USES.values(), ids=FIRST_USES)
@pytest.mark.parametrize(("make", "kind", "text"), WRONG.values(), ids=WRONG)
def test_the_first_use_of_the_class_says_what_is_wrong(
    world: World,
    make: Callable[[World], Any],
    kind: type[ArgumentError],
    text: str,
    use: Callable[[LockingSession, Any], object],
) -> None:
    order = make(world)
    engine = create_engine("sqlite://")
    with LockingSession(engine) as session, pytest.raises(kind, match=text):
        use(session, order)
    engine.dispose()


@pytest.mark.parametrize("method", ["get_document", "get_entity"])
def test_a_wrong_one_is_reported_again_when_it_is_used(world: World, method: str) -> None:
    order = world.order("line")
    with raises_text("'line' is unknown"):
        configure_mappers()
    engine = create_engine("sqlite://")
    world.registry.metadata.create_all(engine)
    with LockingSession(engine) as session:
        for _ in range(2):
            with raises_text("'line' is unknown"):
                getattr(session, method)(order, 1, LockOptions.ForUpdate)
            session.rollback()
    engine.dispose()


def test_a_right_declaration_mends_a_wrong_one(world: World) -> None:
    order = world.order("line")
    with raises_text("'line' is unknown"):
        configure_mappers()
    document(parts=("lines",))(order)
    assert paths(order) == ["lines"]


def test_what_is_mapped_later_may_be_wrong_too(world: World) -> None:
    class Letter:
        pass

    document(parts=("pages",))(Letter)
    configure_mappers()
    table = Table("letter", world.registry.metadata, Column("id", Integer, primary_key=True))
    world.registry.map_imperatively(Letter, table)
    with raises_text("@document on Letter: the part 'pages' is unknown"):
        configure_mappers()
