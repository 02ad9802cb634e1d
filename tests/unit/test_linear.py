"""The cost of a lock depends on its document, not on the other objects in the session.

The tests count calls of Python functions, in any module, so the result is the same on every
machine.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, Table, create_engine, event, inspect, select
from sqlalchemy.orm import Session, configure_mappers, relationship, sessionmaker

import sa_doclock
from benchmarks.lab.models import DeclaredDetail, DeclaredDoc, Detail, Doc, fill
from sa_doclock import (
    LockingSession,
    LockOptions,
    UnlockedWriteWarning,
    UnsavedChanges,
    claim_each,
)
from sa_doclock.core.session import context_of
from tests.support.tracing import own_path
from tests.unit.mappings import World, refers

ForUpdate = LockOptions.ForUpdate
DOCUMENTS, EARLY, LATER, LATE = 50, 5, 12, 40
One = Callable[[LockingSession, int], Any]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path: Path = tmp_path_factory.mktemp("linear") / "linear.db"
    engine = create_engine(f"sqlite:///{path}")
    event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous = OFF"))
    fill(engine, DOCUMENTS)
    yield engine
    engine.dispose()


def calls_of(function: Callable[[], object]) -> Counter[str]:
    """Return the number of calls of each function."""
    calls: Counter[str] = Counter()

    def profile(frame: FrameType, what: str, _argument: object) -> None:
        if what == "call":
            calls[f"{frame.f_code.co_filename}:{frame.f_code.co_name}"] += 1

    gc.disable()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def entity(session: LockingSession, number: int) -> Any:
    doc = session.get_one_entity(Doc, number, ForUpdate)
    return doc, [*doc.details]


def declared(session: LockingSession, number: int) -> Any:
    doc = session.get_one_entity(DeclaredDoc, number, ForUpdate)
    return doc, [*doc.details]


def document(session: LockingSession, number: int) -> Any:
    return session.get_document(DeclaredDoc, number, ForUpdate)


def changed(session: LockingSession, number: int) -> Any:
    doc = document(session, number)
    doc.total += 1
    doc.details[0].value += 1
    last = doc.details[-1]
    session.expunge(last)
    session.add(last)  # as an object of another session
    return doc


def added(session: LockingSession, number: int) -> Any:
    doc = document(session, number)
    new = DeclaredDetail(id=-number, doc_id=number, value=1)
    session.add(new)
    return doc, new


def appended(session: LockingSession, number: int) -> Any:
    doc = document(session, number)
    doc.details.append(DeclaredDetail(id=-number, value=1))
    return doc


def deleted(session: LockingSession, number: int) -> Any:
    doc = document(session, number)
    session.delete(doc.details[0])
    return doc


def a_set(session: LockingSession, number: int) -> Any:
    docs = session.entity_set(Doc, ForUpdate).where(Doc.id == number)
    return [(doc, [*doc.details]) for doc in session.scalars(docs)]


def two_at_once(session: LockingSession, number: int) -> Any:
    return session.get_documents(DeclaredDoc, [number, DOCUMENTS], ForUpdate)


def in_savepoint(session: LockingSession, number: int) -> Any:
    with session.begin_nested():
        return changed(session, number)


def in_transaction(session: LockingSession, number: int) -> Any:
    doc = changed(session, number)
    session.rollback()
    return doc


ONE: list[One] = [
    *(entity, declared, document, changed, added, appended, deleted),
    *(a_set, two_at_once, in_savepoint, in_transaction),
]


def changed_header(_session: LockingSession, doc: Any, _part: Any) -> None:
    doc.total += 1


def changed_part(_session: LockingSession, _doc: Any, part: Any) -> None:
    part.value += 1


def new_part(_session: LockingSession, doc: Any, _part: Any) -> None:
    doc.details.append(DeclaredDetail(id=-doc.id, value=1))


def deleted_part(session: LockingSession, _doc: Any, part: Any) -> None:
    session.delete(part)


def no_more(_session: LockingSession) -> Any: ...


def documents_read_before(session: LockingSession) -> Any:
    found: list[Any] = [*session.scalars(select(Doc)), *session.scalars(select(DeclaredDoc))]
    return found, [[*doc.details] for doc in found]


def details_read_before(session: LockingSession) -> Any:
    return [*session.scalars(select(Detail)), *session.scalars(select(DeclaredDetail))]


def others_pending(session: LockingSession) -> Any:
    """Change details of documents, half of them under keys that no session locks."""
    found = details_read_before(session)
    for detail in found:
        if detail.id // 100_000 > LATE:
            detail.value += 1
    new = [DeclaredDetail(id=-1000 - n, doc_id=DOCUMENTS + 1 + n, value=1) for n in range(100)]
    session.add_all(new)
    return found, new


BEFORE = [no_more, documents_read_before, details_read_before, others_pending]
REFUSED: dict[tuple[object, object], str] = {  # because of the pending changes
    (two_at_once, others_pending): "one of the documents has them",
    (in_savepoint, others_pending): "a savepoint flushes them, without their lock",
}


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("one", ONE)
def test_a_late_lock_calls_what_an_early_one_called(
    engine: Engine, one: One, before: Callable[[LockingSession], Any]
) -> None:
    if (one, before) in REFUSED:
        pytest.skip(REFUSED[one, before])
    counted: dict[int, Counter[str]] = {}
    with LockingSession(engine, autoflush=False) as session:
        kept = [before(session)]
        for number in range(1, LATER + 1):
            if number in (EARLY, LATER):  # counting takes several times as long
                counted[number] = calls_of(lambda: kept.append(one(session, number)))  # noqa: B023
            else:
                kept.append(one(session, number))
        session.rollback()
    more = counted[LATER] - counted[EARLY]
    if one is in_transaction:  # SQLAlchemy's own rollback() visits every loaded object
        more = Counter({name: more[name] for name in more if own_path(name) is not None})
    assert more.total() <= 0, more


def test_a_pending_change_is_found_among_many(engine: Engine) -> None:
    with LockingSession(engine, autoflush=False) as session:
        kept = others_pending(session)
        for number in (DOCUMENTS, DOCUMENTS - 1):
            with pytest.raises(UnsavedChanges):
                session.get_entity(DeclaredDoc, number, ForUpdate)
        session.rollback()
    assert kept


def test_a_claim_late_in_the_loop(engine: Engine) -> None:
    make = sessionmaker(engine, class_=LockingSession)
    counted: dict[int, Counter[str]] = {}
    claims = claim_each(make, select(Doc).order_by(Doc.id))

    def one() -> None:
        with next(claims) as doc:
            doc.total += 1

    for number in range(1, LATE + 1):
        counted[number] = calls_of(one)
    claims.close()
    half = (LATE - EARLY) // 2
    middle = sorted(counted[number].total() for number in range(EARLY, EARLY + half))
    late = sorted(counted[number].total() for number in range(LATE - half, LATE))
    assert late[len(late) // 2] <= middle[len(middle) // 2]


@pytest.mark.parametrize("entity", [Doc, DeclaredDoc])
def test_many_at_once_cost_as_much_each_as_few(engine: Engine, entity: type[Any]) -> None:
    def use(many: int) -> float:
        def lock_and_change() -> None:
            for doc in session.get_documents(entity, range(1, many + 1), ForUpdate):
                doc.total += 1
                doc.details[0].value += 1
            session.flush()
            session.rollback()

        with LockingSession(engine) as session:
            return calls_of(lock_and_change).total() / many

    use(3)
    assert use(LATE) <= use(12)


def instructions_of(function: Callable[[], object]) -> int:
    """Return the number of instructions of our own code that ran. A loop in C counts as none, a loop in Python does."""
    found = 0

    def count(_frame: FrameType, what: str, _argument: object) -> Any:
        nonlocal found
        found += what == "opcode"
        return count

    def call(frame: FrameType, _what: str, _argument: object) -> Any:
        if own_path(frame.f_code.co_filename) is None:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return count

    gc.disable()
    before = sys.gettrace()
    sys.settrace(call)
    try:
        function()
    finally:
        sys.settrace(before)
        gc.enable()
    return found


@pytest.mark.parametrize("change", [changed_header, changed_part, new_part, deleted_part])
def test_a_flush_that_is_only_warned_of(engine: Engine, change: Callable[..., None]) -> None:
    def use(many: int) -> float:
        with LockingSession(engine, guard="warn", autoflush=False) as session:
            kept = [session.get_one(DeclaredDoc, number) for number in range(1, many + 1)]
            for doc in kept:
                change(session, doc, doc.details[0])
            found = instructions_of(session.flush) / many
            session.rollback()
        return found

    with pytest.warns(UnlockedWriteWarning):
        each = [use(many) for many in (3, 12, LATE)]
    assert each[2] <= each[1]


class Shop:
    """Make orders, each with a line that has a tax and its own tag."""

    def __init__(self, world: World, path: Path) -> None:
        meta = world.registry.metadata
        links = Table("links", meta, refers("order"), refers("tag"))
        self.order = world.map(
            "Order",
            declare=sa_doclock.document(parts=("lines", "lines.taxes", "tags")),
            lines=relationship("Line"),
            tags=relationship("Tag", secondary=links),
        )
        self.line = world.map("Line", refers("order"), taxes=relationship("Tax"))
        self.tax = world.map("Tax", refers("line"), value())
        self.tag = world.map("Tag", value())
        self.engine = create_engine(f"sqlite:///{path}")
        meta.create_all(self.engine)
        with Session(self.engine) as session:
            session.add_all(map(self.new, range(1, 60)))
            session.commit()

    def new(self, number: int) -> Any:
        line = self.line(id=number, taxes=[self.tax(id=number, value=1)])
        return self.order(id=number, lines=[line], tags=[self.tag(id=number, value=1)])


def value() -> Column[int]:
    return Column("value", Integer)


def test_what_is_loaded_again_and_again_is_kept_once(tmp_path: Path) -> None:
    world = World()
    shop = Shop(world, tmp_path / "again.db")
    with LockingSession(shop.engine) as session:
        order: Any = session.get_document(shop.order, 1, ForUpdate)
        for _ in range(100):
            session.refresh(order.lines[0].taxes[0])
            session.get_document(shop.order, 2, ForUpdate)
        index = context_of(session).loaded.of(inspect(shop.order))
        kept = {name: len(one) for name, one in vars(index).items() if isinstance(one, list)}
    shop.engine.dispose()
    world.close()
    assert max(kept.values()) < 50, kept


@pytest.mark.slow
def test_one_more_document_is_declared_among_many() -> None:
    """The check visits each declared document again, but does not compare it with every other document."""
    world, more = World(), 60
    few = calls_of(lambda: declare_in(world, "few"))
    for number in range(more):
        declare_in(world, f"between{number}")
    many = calls_of(lambda: declare_in(world, "many"))
    world.close()
    own = sum((many - few)[name] for name in many if own_path(name.rpartition(":")[0]))
    assert own / more < 120


def declare_in(world: World, name: str) -> None:
    lines = relationship(f"{name}_line", cascade="all, delete-orphan")
    world.map(name, declare=sa_doclock.document, lines=lines)
    world.map(f"{name}_line", refers(name))
    configure_mappers()
