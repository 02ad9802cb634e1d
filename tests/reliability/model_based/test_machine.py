"""Random programs of two sessions, with a check of the four promises after every step.

Session A locks, reads, changes, opens savepoints and ends its transaction in every order that
hypothesis generates; session B changes documents under their locks, and commits.  The model
predicts the result of each call, and what every session must see then.

``SA_DOCLOCK_MACHINE_EXAMPLES=5000`` searches further than the daily run, at random.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeVar

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import ForeignKey, inspect
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    SessionTransaction,
    mapped_column,
    relationship,
    selectinload,
)

from sa_doclock import (
    DocLockError,
    LockingSession,
    LockMisuse,
    LockNotAvailable,
    LockOptions,
    LockUpgradeRefused,
    SnapshotConflict,
    UnlockedWrite,
    UnsavedChanges,
    WrongIsolation,
    document,
)
from tests.reliability.model_based.engines import (
    Action,
    Doc,
    Docs,
    Failure,
    File,
    ForUpdate,
    Kind,
    Rows,
    SharedRead,
    SnapshotRead,
    action,
    after,
)
from tests.support.databases import Database

# --------------------------------------------------------------------------------------------------
# The expected state: committed documents, session A with its savepoints, and session B.

_STRENGTH = (SnapshotRead, SharedRead, ForUpdate)
Engine = Rows | File


@dataclass(frozen=True)
class Savepoint:
    held: dict[int, LockOptions]
    flushed: dict[int, Doc]
    born: frozenset[int]
    promises: int


@dataclass
class Transaction:
    """Session A, from its first use to commit or rollback."""

    by_begin: bool = False
    held: dict[int, LockOptions] = field(default_factory=dict)
    read: dict[int, Doc] = field(default_factory=dict)  # under a read lock
    flushed: dict[int, Doc] = field(default_factory=dict)
    pending: dict[int, Doc] = field(default_factory=dict)
    unlawful: set[int] = field(default_factory=set)  # changed without their lock
    born: set[int] = field(default_factory=set)
    savepoints: list[Savepoint] = field(default_factory=list)
    forgetful: bool = False  # it released objects that lead from a changed part to its header
    dead_at: int | None = None  # how many savepoints were open when a lock failed

    def may_write(self, doc: int) -> bool:
        return self.held.get(doc) is ForUpdate or doc in self.born

    @property
    def unsaved(self) -> set[int]:
        return {*self.pending, *self.unlawful}

    @property
    def held_at_server(self) -> Mapping[int, LockOptions]:
        """A failed statement releases the locks of its transaction or savepoint at once."""
        if self.dead_at is None:
            return self.held
        return self.savepoints[self.dead_at - 1].held if self.dead_at else {}


class Model:
    def __init__(
        self, docs: dict[int, Doc], engine: Callable[[Callable[[], dict[int, Doc]]], Engine]
    ) -> None:
        self.committed = docs
        self.a: Transaction | None = None
        self.b: dict[int, Doc] | None = None  # the document that B holds, as B sees it
        self.promises: list[int] = []
        self.kept: list[int] = []  # the promises that were kept
        self.ended_badly = False  # an error after which the program has to roll back
        self._new_engine: Callable[[], Engine] = lambda: engine(lambda: dict(self.committed))
        self.engine = self._new_engine()

    # State

    @property
    def dead(self) -> bool:
        return self.a is not None and self.a.dead_at is not None

    @property
    def usable(self) -> bool:
        """A can continue without a rollback."""
        return not self.dead and not self.ended_badly

    @property
    def nested(self) -> bool:
        return self.a is not None and bool(self.a.savepoints)

    @property
    def tx(self) -> Transaction:
        """A's transaction, which begins on demand."""
        if self.a is None:
            self.a = Transaction()
        return self.a

    def view(self, doc: int) -> Doc | None:
        """Return a document that A holds or made, as A sees it."""
        known = self.engine.visible()
        if self.a is None:
            return known.get(doc)
        for layer in (self.a.pending, self.a.flushed, self.a.read):
            if doc in layer:
                return layer[doc]
        return known.get(doc)

    @property
    def mine(self) -> set[int]:
        """The documents whose state A knows."""
        return set() if self.a is None else {*self.a.held, *self.a.born}

    # Actions of A

    def lock(self, docs: Sequence[int], lock: LockOptions, *, as_set: bool) -> Failure:
        """Lock documents one by one, or as a set: one statement, checked afterwards."""
        if self.dead:
            return PendingRollbackError
        held = {} if self.a is None else self.a.held
        upgrade = any(lock is ForUpdate and held.get(doc, lock) is not lock for doc in docs)
        wanted = [doc for doc in docs if doc not in held or _weaker(held[doc], lock)]
        if not as_set and upgrade:
            return LockUpgradeRefused
        if not as_set and not wanted:
            return None
        if not as_set and self.a is not None and self.a.unsaved.intersection(wanted):
            self.ended_badly = self.a.forgetful  # the database had to answer, under the lock
            return UnsavedChanges
        opens = self.a is None
        failure = self.engine.take(wanted, lock, self.b, nested=self.nested)
        if failure is None:
            return self._granted(wanted, lock, upgrade=upgrade)
        if failure is not WrongIsolation and opens:
            self.roll_back()
        elif failure is not WrongIsolation:
            self.tx.dead_at = len(self.tx.savepoints)
        return failure

    def _granted(self, docs: Sequence[int], lock: LockOptions, *, upgrade: bool) -> Failure:
        unsaved = self.tx.unsaved.intersection(docs)
        for doc in docs:
            found = self.view(doc)
            if found is not None:
                self.tx.held.setdefault(doc, lock)
                if lock is not ForUpdate and not self.tx.may_write(doc):
                    self.tx.read[doc] = found
        self.ended_badly = upgrade or bool(unsaved)
        return LockUpgradeRefused if upgrade else UnsavedChanges if unsaved else None

    def read(self) -> None:
        """Read without a lock."""
        _ = self.tx
        self.engine.read(nested=self.nested)

    def change(self, what: Action, docs: dict[int, Doc]) -> None:
        """Change without a flush."""
        tx = self.tx
        for doc, changed in after(docs, what).items():
            if doc in self.mine:
                tx.pending[doc] = changed
            if not tx.may_write(doc):
                tx.unlawful.add(doc)

    def create(self, doc: int, made: Doc) -> None:
        """Change and flush."""
        self.tx.born.add(doc)
        self.tx.pending[doc] = made
        self.flush()
        self.engine.wrote()

    def flush(self) -> Failure:
        if self.a is None or not self.a.unsaved:
            return None
        if self.engine.read_only:
            return WrongIsolation
        if self.a.unlawful:
            return UnlockedWrite
        self.a.flushed |= self.a.pending
        self.a.pending.clear()
        return None

    def begin(self) -> None:
        self.tx.by_begin = True

    def savepoint(self) -> Failure:
        failure = self.flush()
        if failure is None:
            tx = self.tx
            marks = dict(tx.held), dict(tx.flushed), frozenset(tx.born), len(self.promises)
            tx.savepoints.append(Savepoint(*marks))
            self.engine.savepoint()
        return failure

    def roll_back_to(self, number: int) -> None:
        tx = self.tx
        mark = tx.savepoints[number]
        del tx.savepoints[number:], self.promises[mark.promises :]
        tx.held, tx.flushed, tx.born = dict(mark.held), dict(mark.flushed), set(mark.born)
        tx.read = {doc: read for doc, read in tx.read.items() if doc in tx.held}
        tx.pending.clear()
        tx.unlawful.clear()
        tx.dead_at = None

    def release(self, number: int) -> Failure:
        failure = self.flush()
        if failure is None:
            del self.tx.savepoints[number:]
        return failure

    def commit(self) -> Failure:
        if self.dead:
            return PendingRollbackError
        failure = self.flush()
        if failure is None:
            if self.a is not None:
                self.committed = {**self.committed, **self.a.flushed}
            self.kept += self.promises
            self.roll_back()
        return failure

    def save_changes(self) -> Failure:
        if self.dead:
            return PendingRollbackError
        ends = self.a is not None and not self.a.by_begin and not self.a.savepoints
        return self.commit() if ends else self.flush()

    def release_locks(self) -> Failure:
        if self.a is not None and (self.a.by_begin or self.a.savepoints):
            return LockMisuse
        if self.a is not None:
            self.roll_back()
        return None

    def roll_back(self) -> None:
        self.a = None
        self.promises = []
        self.ended_badly = False
        self.engine = self._new_engine()

    # Actions of B

    def b_lock(self, doc: int) -> Failure:
        """A failure ends B's transaction."""
        held = {} if self.a is None else self.a.held_at_server
        if (self.b is None or doc not in self.b) and self.engine.refuses_b(doc, held):
            self.b = None
            return LockNotAvailable
        self.b = {} if self.b is None else self.b
        if doc in self.committed:
            self.b.setdefault(doc, self.committed[doc])
        return None

    def b_commit(self) -> Failure:
        failed = self.engine.fails_commit_of_b()
        if not failed:
            self.committed = {**self.committed, **(self.b or {})}
        self.b = None
        return LockNotAvailable if failed else None


def _weaker(held: LockOptions, lock: LockOptions) -> bool:
    return _STRENGTH.index(held) < _STRENGTH.index(lock)


# --------------------------------------------------------------------------------------------------
# The tests.

T = TypeVar("T")


class Base(DeclarativeBase):
    """Tables for the machine alone."""


def _key() -> Mapped[int]:
    return mapped_column(primary_key=True, autoincrement=False)


@document(parts=("lines", "lines.taxes"))
class Order(Base):
    __tablename__ = "sm_order"
    id: Mapped[int] = _key()
    total: Mapped[int]
    lines: Mapped[list[Line]] = relationship(back_populates="order", cascade="all, delete-orphan")


class Line(Base):
    __tablename__ = "sm_line"
    id: Mapped[int] = _key()
    order_id: Mapped[int] = mapped_column(ForeignKey("sm_order.id"), index=True)
    value: Mapped[int]
    order: Mapped[Order] = relationship(back_populates="lines")
    taxes: Mapped[list[Tax]] = relationship(back_populates="line", cascade="all, delete-orphan")


class Tax(Base):
    __tablename__ = "sm_tax"
    id: Mapped[int] = _key()
    line_id: Mapped[int] = mapped_column(ForeignKey("sm_line.id"), index=True)
    value: Mapped[int]
    line: Mapped[Line] = relationship(back_populates="taxes")


TABLES: tuple[type[Base], ...] = (Order, Line, Tax)

# A wait is a failure: the tests ask for every lock without waiting.
_NEVER_WAIT: dict[str, Any] = {
    "sqlite": {"timeout": 0},
    "postgresql": {"options": "-c lock_timeout=2000"},
}


class World:
    """One database, and a connection that observes it from outside."""

    def __init__(self, database: Database) -> None:
        self.database = database
        database.create(Base.metadata)
        self.engine = database.engine(connect_args=_NEVER_WAIT[database.name])
        self._observer = database.observer().connect()

    def close(self) -> None:
        self._observer.close()

    def session(self) -> LockingSession:
        return LockingSession(self.engine, autoflush=False)

    def refill(self, docs: Docs) -> None:
        with self.engine.begin() as connection:
            for entity in reversed(TABLES):
                connection.execute(sa.delete(entity))
            with Session(connection, join_transaction_mode="rollback_only") as session:
                for number, doc in docs.items():
                    session.add(made(number, doc))
                session.flush()
                session.commit()

    def committed(self) -> dict[int, Doc]:
        """Return the documents as every other session sees them."""
        return read_rows(self._observer)


def made(number: int, doc: Doc) -> Order:
    lines = [
        Line(
            id=line,
            value=value,
            taxes=[Tax(id=tax, value=v) for tax, (at, v) in doc.taxes.items() if at == line],
        )
        for line, value in doc.lines.items()
    ]
    return Order(id=number, total=doc.total, lines=lines)


def read_rows(bind: sa.Connection | Session) -> dict[int, Doc]:
    """Return all documents, read by statements without ORM objects."""
    headers = bind.execute(sa.select(Order.id, Order.total)).all()
    lines = bind.execute(sa.select(Line.id, Line.order_id, Line.value)).all()
    taxes = bind.execute(sa.select(Tax.id, Tax.line_id, Tax.value)).all()
    of_line = {line: order for line, order, _ in lines}
    return {
        header: Doc(
            total,
            {line: value for line, order, value in lines if order == header},
            {tax: (line, value) for tax, line, value in taxes if of_line[line] == header},
        )
        for header, total in headers
    }


def plain(session: Session, number: int) -> Order | None:
    """Read without a lock; always send a statement."""
    whole = selectinload(Order.lines).selectinload(Line.taxes)
    return session.scalars(sa.select(Order).where(Order.id == number).options(whole)).one_or_none()


def seen(order: Order) -> Doc:
    """Return the document as the program sees it; this loads missing attributes."""
    lines = {line.id: line.value for line in order.lines}
    taxes = {tax.id: (line.id, tax.value) for line in order.lines for tax in line.taxes}
    return Doc(order.total, lines, taxes)


def perform(session: Session, what: Action) -> None:
    """Apply the action to the objects, without a flush."""
    header, target = session.get_one(Order, what.doc), session.get_one(Order, what.to)
    line, other = _found(session, Line, what.line), _found(session, Line, what.other)
    tax, number = _found(session, Tax, what.tax), what.number
    if what.kind is Kind.ADD:
        if number % 2:
            header.lines.append(Line(id=number, value=number))
        else:
            session.add(Line(id=number, value=number, order=header))
        header.total += number
    elif what.kind is Kind.TAX and tax:
        tax.value = number
    elif what.kind is Kind.MOVE_TAX and tax and other:
        assert tax.line is not other  # loads it: SQLAlchemy removes the tax from the loaded state
        tax.line = other
    elif what.kind is Kind.SHIFT and line and other:
        line.value -= number
        other.value += number
    elif what.kind is Kind.NEW_TAX and line:
        line.taxes.append(Tax(id=number, value=number))
    elif what.kind is Kind.VALUE and line:
        header.total += number - line.value
        line.value = number
    elif what.kind is Kind.REMOVE and line:
        header.total -= line.value
        header.lines.remove(line)
    elif what.kind is Kind.MOVE and line:
        header.total -= line.value
        target.total += line.value
        assert line.order is header
        line.order = target
    else:
        raise AssertionError(what)


def _found(session: Session, entity: type[T], ident: int) -> T | None:
    """Return a persistent or pending object."""
    new = (one for one in session.new if isinstance(one, entity) and one.id == ident)  # type: ignore[attr-defined]
    return next(new, None) or session.get(entity, ident)


# --------------------------------------------------------------------------------------------------
# The objects in a session's memory, inspected without loading anything.


def disagreements(session: Session, views: Mapping[int, Doc | None]) -> Iterator[str]:
    """Yield the loaded attributes of these documents with unexpected values."""
    for number, view in views.items():
        assert view is not None
        yield from _of_object(session, Order, number, total=view.total, lines=set(view.lines))
        for line, value in view.lines.items():
            taxes = {tax for tax, (at, _) in view.taxes.items() if at == line}
            yield from _of_object(session, Line, line, value=value, order=number, taxes=taxes)
        for tax, (line, value) in view.taxes.items():
            yield from _of_object(session, Tax, tax, value=value, line=line)


def _of_object(session: Session, entity: Any, ident: int, **expected: object) -> Iterator[str]:
    instance = session.identity_map.get(session.identity_key(entity, ident))
    loaded = {} if instance is None else inspect(instance).dict
    for name, value in expected.items():
        if name in loaded and (found := _plain(loaded[name])) != value:
            yield f"{entity.__name__} {ident}: {name} is {found}, should be {value}"


def _plain(value: Any) -> object:
    if isinstance(value, list):
        return {one.id for one in value}
    return value.id if isinstance(value, (Order, Line)) else value


Unsaved = set[tuple[object, ...]]


def unsaved(session: Session) -> Unsaved:
    """Return the pending changes: for each object and attribute, the set, added and removed values."""
    found: Unsaved = set()
    for instance in [*session.new, *session.dirty, *session.deleted]:
        whose = _named(instance)
        for attribute in inspect(instance).attrs:
            history, name = attribute.history, attribute.key
            removed = history.deleted if name in ("lines", "taxes") else ()
            found |= {(*whose, name, "added", _of(value)) for value in history.added or ()}
            found |= {(*whose, name, "removed", _of(value)) for value in removed or ()}
    return found


def _of(value: Any) -> str:
    return " ".join(map(str, _named(value)))


def _named(value: Any) -> tuple[str, object]:
    state = inspect(value, raiseerr=False)
    if state is None:
        return type(value).__name__, value
    return type(value).__name__, state.identity[0] if state.identity else value.id


# --------------------------------------------------------------------------------------------------
# The tests.

FIRST = {1: Doc(30, {11: 10, 12: 20}, {111: (11, 1)}), 2: Doc(5, {21: 5}, {211: (21, 2)})}
NEW = 3  # the document that A may create

_NOT_GRANTED = (LockNotAvailable, SnapshotConflict, WrongIsolation)

documents = st.sampled_from([1, 2, 1, 2, NEW])
locks = st.sampled_from([ForUpdate, ForUpdate, SharedRead, SnapshotRead])
ways = st.sampled_from(["entity", "document", "entities", "documents", "set"])
kinds = st.sampled_from(Kind)
picks = st.integers(0, 3)
on_usable = precondition(lambda self: self.model.usable)
on_savepoint = precondition(lambda self: self.model.nested and not self.model.ended_badly)
on_b = precondition(lambda self: self.model.b is not None)


class Machine(RuleBasedStateMachine):
    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        self.world.refill(FIRST)
        database = self.world.database
        journal = database.column == "sqlite-journal"
        engine: Any = partial(File, journal=journal) if database.name == "sqlite" else Rows
        self.model = Model(dict(FIRST), engine)
        self.a, self.b = self.world.session(), self.world.session()
        self.savepoints: list[SessionTransaction] = []
        self.known: list[object] = []  # the identity map is weak
        self.unsaved: Unsaved = set()
        self.called: list[int] = []
        self.number = 1000

    def teardown(self) -> None:
        self.a.close()
        self.b.close()

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def attempt(self, expected: Failure, action: Callable[[], object], *others: Failure) -> Failure:
        """Run the call; return its error, which must be the expected one."""
        try:
            action()
        except (DocLockError, PendingRollbackError) as error:
            if type(error) not in (expected, *others):
                raise
            return type(error)
        assert expected is None, f"should have raised {expected.__name__}"
        return None

    # A locks and reads

    @precondition(lambda self: not self.model.ended_badly)
    @rule(docs=st.lists(documents, min_size=1, max_size=3), lock=locks, way=ways, at_once=picks)
    def lock(self, docs: Sequence[int], lock: LockOptions, way: str, at_once: int) -> None:
        how: dict[str, Any] = {}
        if way in ("entity", "document"):
            docs = docs[:1]
        asked = lock
        if lock is not SnapshotRead and (at_once or way == "set"):
            asked |= LockOptions.NoWait
        elif lock is not SnapshotRead:
            how = {"lock_timeout": 0}
        expected = self.model.lock(sorted(set(docs)), lock, as_set=way == "set")
        a = self.a
        chosen = a.entity_set(Order, asked).where(Order.id.in_(docs)).order_by(Order.id)
        calls: dict[str, Callable[[], object]] = {
            "entity": lambda: a.get_entity(Order, docs[0], asked, **how),
            "document": lambda: a.get_document(Order, docs[0], asked, **how),
            "entities": lambda: a.get_entities(Order, docs, asked, **how),
            "documents": lambda: a.get_documents(Order, docs, asked, **how),
            "set": lambda: a.scalars(chosen).all(),
        }
        # If only the lock makes the pending changes visible, the call may fail earlier.
        others = _NOT_GRANTED if self.model.ended_badly else ()
        if self.attempt(expected, calls[way], *others) is UnsavedChanges and others:
            self.a_refused_lock_permits_nothing()

    def a_refused_lock_permits_nothing(self) -> None:
        """The lock may be granted, but earlier changes are not written under it."""
        tx = self.model.tx
        held = self.a.held_locks  # a read lock does not permit writes
        assert not [doc for doc in tx.unlawful if held.get((Order, (doc,))) is ForUpdate]
        if tx.unlawful:
            self.attempt(self.model.flush(), self.a.flush)

    @on_usable
    @rule(doc=documents)
    def read(self, doc: int) -> None:
        self.model.read()
        self.known.append(plain(self.a, doc))  # with its parts: the identity map is weak

    @on_usable
    @rule(whole=st.booleans())
    def read_what_is_held(self, whole: bool) -> None:
        """Compare all of it, as the program and the database see it."""
        for doc in sorted(self.model.mine):
            held = self.model.tx.held.get(doc, LockOptions.None_)
            read = self.a.get_document if whole else self.a.get_entity
            order = read(Order, doc, held)
            expected = self.model.view(doc)
            assert order is not None
            assert expected is not None
            assert seen(order) == expected
            assert expected.consistent
        if self.model.mine and not self.model.tx.unsaved:
            rows = read_rows(self.a)
            for doc in self.model.mine:
                assert rows[doc] == self.model.view(doc)

    @on_usable
    @precondition(lambda self: not self.model.a or not self.model.a.unsaved)
    @rule(doc=documents, expunged=st.booleans())
    def let_go_of_objects(self, doc: int, expunged: bool) -> None:
        """The transaction owns the lock, so it stays."""
        self.known.clear()
        if expunged and doc in self.model.mine and doc not in self.model.tx.flushed:
            self.a.expunge(self.a.get_one(Order, doc))

    # Changes of A

    @on_usable
    @rule(doc=documents, to=documents, kind=kinds, pick=picks, keep=st.booleans())
    def change(self, doc: int, to: int, kind: Kind, pick: int, keep: bool) -> None:
        docs: dict[int, Doc] = {}
        unlawful = set() if self.model.a is None else self.model.a.unlawful
        for one in {doc, to}:
            view = (
                self.model.view(one) if one in self.model.mine else self.read_anew(one, keep=keep)
            )
            if view is None or one in unlawful:
                return
            docs[one] = view
        what = action(kind, doc, to, docs, pick, self.next_number())
        if what is not None:
            self.model.change(what, docs)
            perform(self.a, what)
            self.unsaved = unsaved(self.a)
            self.model.tx.forgetful |= not keep

    def read_anew(self, doc: int, *, keep: bool) -> Doc | None:
        self.model.read()
        order = plain(self.a, doc)
        if keep:
            self.keep_objects()
        return None if order is None else seen(order)

    def keep_objects(self) -> None:
        self.known.extend(set(self.a).difference(self.known))

    @on_usable
    @precondition(lambda self: not self.model.a or not self.model.a.unlawful)
    @precondition(lambda self: NEW not in self.model.committed and NEW not in self.model.mine)
    @precondition(lambda self: self.model.engine.can_insert(self.model.b is not None))
    @rule()
    def create(self) -> None:
        line, tax = self.next_number(), self.next_number()
        doc = Doc(line, {line: line}, {tax: (line, tax)})
        self.model.create(NEW, doc)
        self.a.add(made(NEW, doc))
        self.a.flush()

    @on_usable
    @rule()
    def flush(self) -> None:
        self.attempt(self.model.flush(), self.a.flush)

    @on_usable
    @rule()
    def promise(self) -> None:
        number = self.next_number()
        self.model.promises.append(number)
        self.a.on_commit(partial(self.called.append, number))

    # Transactions of A

    @precondition(lambda self: self.model.a is None)
    @rule()
    def begin(self) -> None:
        self.model.begin()
        self.a.begin()

    @on_usable
    @rule()
    def savepoint(self) -> None:
        self.attempt(self.model.savepoint(), lambda: self.savepoints.append(self.a.begin_nested()))

    @on_savepoint
    @rule(pick=picks)
    def roll_back_to_savepoint(self, pick: int) -> None:
        number = pick % len(self.savepoints)
        self.model.roll_back_to(number)
        self.savepoints[number].rollback()
        del self.savepoints[number:]

    @on_usable
    @on_savepoint
    @rule(pick=picks)
    def release_savepoint(self, pick: int) -> None:
        number = pick % len(self.savepoints)
        self.attempt(self.model.release(number), self.savepoints[number].commit)
        del self.savepoints[len(self.model.tx.savepoints) :]

    @precondition(lambda self: not self.model.ended_badly)
    @rule(method=st.sampled_from(["commit", "save_changes", "release_locks"]))
    def end(self, method: str) -> None:
        self.attempt(getattr(self.model, method)(), getattr(self.a, method))
        self.forget_savepoints()

    @precondition(lambda self: self.model.a is not None or self.model.promises)
    @rule(method=st.sampled_from(["rollback", "close"]))
    def give_up(self, method: str) -> None:
        self.model.roll_back()
        getattr(self.a, method)()
        self.forget_savepoints()
        if method == "close":
            self.known.clear()

    def forget_savepoints(self) -> None:
        if self.model.a is None:
            self.savepoints.clear()

    # Actions of B

    @rule(doc=documents)
    def b_locks(self, doc: int) -> None:
        expected = self.model.b_lock(doc)
        wanted = ForUpdate | LockOptions.NoWait
        self.attempt(expected, lambda: self.b.get_entity(Order, doc, wanted))
        if expected is not None:
            self.b.rollback()

    @on_b
    @rule(doc=documents, to=documents, kind=kinds, pick=picks)
    def b_changes(self, doc: int, to: int, kind: Kind, pick: int) -> None:
        held = self.model.b or {}
        if doc in held and to in held:
            what = action(kind, doc, to, held, pick, self.next_number())
            if what is not None:
                held |= after(held, what)
                perform(self.b, what)
                self.b.flush()

    @on_b
    @rule()
    def b_commits(self) -> None:
        self.attempt(self.model.b_commit(), self.b.commit)
        self.b.rollback()

    @on_b
    @rule()
    def b_rolls_back(self) -> None:
        self.model.b = None
        self.b.rollback()

    @precondition(lambda self: self.model.b is None)
    @rule(doc=documents, to=documents, kind=kinds, pick=picks)
    def b_does_it_all(self, doc: int, to: int, kind: Kind, pick: int) -> None:
        """Lock, change and commit: the most common concurrent action."""
        for one in sorted({doc, to}):
            self.b_locks(one)
            if self.model.b is None:
                return
        self.b_changes(doc, to, kind, pick)
        self.b_commits()

    # Invariants after every step

    @invariant()  # a single invariant, so that a failing program prints without repetitions
    def every_promise_is_kept(self) -> None:
        self.held_locks_are_those_that_were_granted()
        self.nothing_that_is_loaded_is_stale()
        self.no_pending_change_is_lost()
        self.others_see_what_is_committed()
        self.promises_are_kept_for_what_was_committed()

    def held_locks_are_those_that_were_granted(self) -> None:
        if self.model.usable:
            held = {} if self.model.a is None else self.model.a.held
            assert dict(self.a.held_locks) == {(Order, (doc,)): held[doc] for doc in held}

    def nothing_that_is_loaded_is_stale(self) -> None:
        if self.model.usable:
            views = {doc: self.model.view(doc) for doc in self.model.mine}
            assert not list(disagreements(self.a, views))
        self.keep_objects()

    def no_pending_change_is_lost(self) -> None:
        if not self.model.usable:
            return
        now = unsaved(self.a)
        if self.model.a is None or not self.model.a.unsaved:
            self.unsaved = set()
            assert not now
        assert self.unsaved <= now

    def others_see_what_is_committed(self) -> None:
        assert self.world.committed() == self.model.committed

    def promises_are_kept_for_what_was_committed(self) -> None:
        assert self.called == self.model.kept


def _settings() -> settings:
    examples = int(os.environ.get("SA_DOCLOCK_MACHINE_EXAMPLES", "0"))
    return settings(
        max_examples=examples or 50,
        stateful_step_count=40,
        derandomize=not examples,
        database=None,
        deadline=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    world = World(database)
    yield world
    world.close()


@pytest.mark.slow
@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.timeout(0)
def test_no_program_breaks_a_promise(world: World) -> None:
    run_state_machine_as_test(type("Machine", (Machine,), {"world": world}), settings=_settings())


# --------------------------------------------------------------------------------------------------
# Short programs that always run: the machine must not leave them to chance.


def reads_before_another_changes(machine: Machine) -> None:
    machine.read(doc=1)
    machine.b_does_it_all(doc=1, to=1, kind=Kind.SHIFT, pick=0)
    machine.lock(docs=[1], lock=ForUpdate, way="entity", at_once=1)


def writes_in_a_snapshot(machine: Machine) -> None:
    machine.lock(docs=[1], lock=SnapshotRead, way="document", at_once=1)
    machine.change(doc=1, to=1, kind=Kind.ADD, pick=0, keep=True)
    machine.flush()


def reads_the_whole_of_what_it_has_changed(machine: Machine) -> None:
    machine.lock(docs=[1], lock=ForUpdate, way="document", at_once=1)
    machine.change(doc=1, to=1, kind=Kind.ADD, pick=0, keep=True)
    machine.read_what_is_held(whole=True)


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.parametrize(
    "program",
    [reads_before_another_changes, writes_in_a_snapshot, reads_the_whole_of_what_it_has_changed],
)
def test_a_program_breaks_no_promise(
    database: Database, program: Callable[[Machine], None]
) -> None:
    world = World(database)
    machine: Machine = type("Program", (Machine,), {"world": world})()
    try:
        program(machine)
        machine.every_promise_is_kept()
    finally:
        machine.teardown()
        world.close()
