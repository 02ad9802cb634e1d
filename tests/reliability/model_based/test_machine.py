"""Random programs of two sessions, and after every step: are the four promises kept?

Session A locks, reads, changes, opens savepoints and ends its transaction in every order that
hypothesis comes up with; session B changes documents under their locks, and commits.  The model
says what each call must end with, and what everybody must see then.

``SA_DOCLOCK_MACHINE_EXAMPLES=5000`` looks further than every day, at random.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.orm import SessionTransaction

from sa_doclock import (
    DocLockError,
    LockNotAvailable,
    LockOptions,
    SnapshotConflict,
    UnsavedChanges,
    WrongIsolation,
)
from tests.reliability.model_based.docs import Doc, Kind, action, after
from tests.reliability.model_based.engines import (
    Failure,
    File,
    ForUpdate,
    Rows,
    SharedRead,
    SnapshotRead,
)
from tests.reliability.model_based.model import Model
from tests.reliability.model_based.sight import Unsaved, disagreements, unsaved
from tests.reliability.model_based.world import Order, World, made, perform, plain, read_rows, seen
from tests.support.databases import Database

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
        """Do it; return what it has raised, which has to be what was expected."""
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
        # Where the pending changes could only be looked at under the lock, it may fail before.
        others = _NOT_GRANTED if self.model.ended_badly else ()
        if self.attempt(expected, calls[way], *others) is UnsavedChanges and others:
            self.a_refused_lock_permits_nothing()

    def a_refused_lock_permits_nothing(self) -> None:
        """It may have been granted, but what was changed before it is not written under it."""
        tx = self.model.tx
        held = self.a.held_locks  # a read lock permits no write
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
        """All of it, as the program sees it and as the database has it."""
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
        """The lock is the transaction's: it stays."""
        self.known.clear()
        if expunged and doc in self.model.mine and doc not in self.model.tx.flushed:
            self.a.expunge(self.a.get_one(Order, doc))

    # A changes

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

    # A opens and ends

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

    # B

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
        """Lock, change and commit, as others most often do meanwhile."""
        for one in sorted({doc, to}):
            self.b_locks(one)
            if self.model.b is None:
                return
        self.b_changes(doc, to, kind, pick)
        self.b_commits()

    # What holds after every step

    @invariant()  # one, so that a failing program is printed without repetitions
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
# Short programs that the machine must not depend on chance to try.


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
