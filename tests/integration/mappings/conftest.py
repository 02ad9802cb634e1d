"""The tables of the mappings, created once, and two sessions that use the same documents."""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy import event, text
from sqlalchemy.orm import Session, sessionmaker

from sa_doclock import LockingSession, LockOptions, LockUpgradeRefused
from tests.integration.mappings.mapped_document import (
    CHANGES,
    FIRST,
    PLAIN,
    SECOND,
    MappedDocument,
    PlainHeader,
    State,
    write_own,
)
from tests.integration.mappings.ways import Way
from tests.support.actors import Actor, Step
from tests.support.databases import Database, new_sqlite_file
from tests.support.waits import wait_until, wait_until_blocked

# --------------------------------------------------------------------------------------------------
# Two sessions compete for documents: one changes them while the other waits for the lock.

ForUpdate = LockOptions.ForUpdate

#: A shared read is a snapshot here, and does not wait.
_SNAPSHOTS = ("sqlite", "mssql")

_WAITING = text("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")

#: The numbers of new documents, by the class of their details.
_numbers: dict[Any, Iterator[int]] = defaultdict(lambda: count(1))


class Pair:
    """Two documents to change.

    :ivar plain: their expected state, as objects without a mapping.
    """

    def __init__(self, mapping: MappedDocument, change: str) -> None:
        numbers = _numbers[mapping.line]
        self.change = change
        self.numbers = [next(numbers), next(numbers)]
        self.plain: list[PlainHeader] = [PLAIN.new(0, FIRST), PLAIN.new(0, SECOND)]

    def expected(self, mapping: MappedDocument) -> list[State]:
        """Return their expected states."""
        return [mapping.expected(one) for one in self.plain]


class Meeting:
    """Alice changes documents while bob waits for them.

    :param way: bob's.
    :param changes: names of alice's changes, each made to two separate documents.
    """

    def __init__(
        self,
        mapping: MappedDocument,
        way: Way,
        changes: Iterable[str],
        makes: sessionmaker[LockingSession],
        actors: Iterable[Actor[LockingSession]],
    ) -> None:
        self._mapping, self._way, self._makes = mapping, way, makes
        self._alice, self._bob = actors
        self._pairs = [Pair(mapping, change) for change in changes]
        with self._plain_session() as session, session.begin():
            for pair in self._pairs:
                for number, values in zip(pair.numbers, (FIRST, SECOND), strict=True):
                    session.add(mapping.new(number, values))

    def run(self) -> dict[str, str]:
        """Make each change while bob waits; return the failures, by the name of the change."""
        known = None if self._way.claims else self._bob.does(self._read)
        failures = {pair.change: failure for pair in self._pairs if (failure := self._try(pair))}
        with self._plain_session() as session:
            headers = self._all_headers(session)
            for pair in self._pairs:
                states = [self._mapping.state(one) for one in self._headers(session, pair)]
                if states != pair.expected(self._mapping):
                    saved = f"saved is {states}, not {pair.expected(self._mapping)}"
                    failures.setdefault(pair.change, saved)
        del headers, known  # the identity map is weak, and bob's objects had to be stale until now
        return failures

    def _try(self, pair: Pair) -> str:
        try:
            return "; ".join(self._meet(pair))
        except Exception:  # noqa: BLE001  # the other changes are still made
            self._alice.does(Session.rollback)
            self._bob.does(Session.rollback)
            return traceback.format_exc(limit=-4)

    def lock_at_once(self) -> None:
        """Let bob lock free documents."""
        (pair,) = self._pairs
        self._bob.does(lambda session: self._take(session, pair, lambda *_: None))

    def _plain_session(self) -> Session:
        return Session(self._makes.kw["bind"])

    def _read(self, session: LockingSession) -> list[Any]:
        """Return all objects of the documents, from a session that ends its transaction."""
        found = self._all_headers(session)
        for pair in self._pairs:
            headers = self._headers(session, pair)
            assert [self._mapping.state(one) for one in headers] == pair.expected(self._mapping)
            found += [line for one in headers for line in self._mapping.members(one)]
        session.commit()
        return found

    def _all_headers(self, session: Session) -> list[Any]:
        """Read the headers of all pairs at once; keeping them saves _headers() its statements."""
        mapping = self._mapping
        numbers = [number for pair in self._pairs for number in pair.numbers]
        every = sa.select(mapping.header).where(mapping.where(numbers)).options(*mapping.options())
        return list(session.scalars(every).unique())

    def _headers(self, session: Session, pair: Pair) -> list[Any]:
        mapping = self._mapping
        entity, options = mapping.header, mapping.options()
        keys = map(mapping.ident, pair.numbers)
        return [session.get_one(entity, key, options=options) for key in keys]

    def _meet(self, pair: Pair) -> Iterable[str]:
        """Let alice hold both documents, bob wait, and alice change them; yield the faults."""
        held = self._alice.does(lambda session: self._lock(session, pair))
        mapping, way = self._mapping, self._way
        taken = slice(2 if way.many else 1)
        seen: list[list[State]] = []
        locks: list[dict[Any, LockOptions]] = []

        def work(session: LockingSession, headers: list[Any]) -> None:
            locks.append(dict(session.held_locks))  # before and after the following steps
            seen.append([mapping.state(header) for header in headers])
            for number in pair.numbers[taken]:
                self._check_rank(session, number)
            locks.append(dict(session.held_locks))
            for header in headers if way.lock is ForUpdate else ():
                write_own(mapping, header)

        def lock(session: LockingSession) -> None:
            self._take(session, pair, work)

        def change(session: LockingSession) -> None:
            CHANGES[pair.change](mapping, *held)
            session.save_changes()

        if way.lock is ForUpdate or self._alice.database.name not in _SNAPSHOTS:
            step = self._bob.starts(lock)
            self._wait(step)
            self._alice.does(change)
            step.result()
        else:
            self._alice.does(change)
            self._bob.does(lock)
        CHANGES[pair.change](PLAIN, *pair.plain)
        expected = pair.expected(mapping)[taken]
        if seen != [expected]:
            yield f"bob has seen {seen}, not {expected}"
        to_hold = {mapping.held_as(number): way.lock for number in pair.numbers[taken]}
        if locks != [to_hold, to_hold]:
            yield f"bob has held {locks}, not {to_hold}"
        for plain in pair.plain[taken] if way.lock is ForUpdate else ():
            write_own(PLAIN, plain)

    def _check_rank(self, session: LockingSession, number: int) -> None:
        """Check that a weaker lock sends nothing, and that a stronger one is refused."""
        mapping = self._mapping
        ask = partial(session.get_entity, mapping.header, mapping.ident(number))
        sent: list[Any] = []
        connection = session.connection()
        ask(LockOptions.SharedRead)  # code with the connection may have ended the transaction
        event.listen(connection, "before_cursor_execute", lambda *args: sent.append(args[2]))
        known = ask(LockOptions.SharedRead)
        assert known is ask(self._way.lock), "another object is the same document"
        if self._way.lock is not ForUpdate:
            with pytest.raises(LockUpgradeRefused):
                ask(ForUpdate)
        assert not sent, "the document is held"

    def _wait(self, step: Step[None]) -> None:
        """Return when the server reports that bob waits for alice."""
        if self._bob.database.name != "mariadb":
            wait_until_blocked(self._bob, self._alice, step)
            return
        # The server reports waits from a copy that is 0.1 s old; there are no other sessions here.
        with self._bob.database.poller().connect() as connection:
            wait_until(
                lambda: step.done() or int(connection.execute(_WAITING).one()[1]),
                poll_seconds=0.001,
            )
        assert not step.done(), f"bob did not wait; {step.exception()!r}"

    def _lock(self, session: LockingSession, pair: Pair) -> list[Any]:
        mapping = self._mapping
        entity, options = mapping.writer or mapping.header, mapping.options()
        keys = map(mapping.ident, pair.numbers)
        return [session.get_one_entity(entity, key, ForUpdate, options=options) for key in keys]

    def _take(self, session: LockingSession, pair: Pair, work: Any) -> None:
        way = self._way
        way.take(session, self._mapping, pair.numbers, way.lock, work, self._makes)


# --------------------------------------------------------------------------------------------------
# The tests.


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a file for each of its mappings."""
    if metafunc.cls is not None:
        metafunc.parametrize("mapping", metafunc.cls.mappings, ids=str)


class Tables:
    """A database with the tables of the requested mappings."""

    def __init__(self, database: Database) -> None:
        self.database = database
        patient = {"connect_args": {"timeout": 60}} if database.name == "sqlite" else {}
        self._engine = database.engine(**patient)
        self._made: dict[sa.MetaData, sa.Engine] = {}

    def engine_of(self, mapping: MappedDocument) -> sa.Engine:
        """Return the engine for this mapping, with its tables created."""
        metadata = mapping.header.metadata
        if metadata not in self._made:
            engine = self._engine.execution_options(schema_translate_map=mapping.schemas)
            self._made[metadata] = engine
            try:
                metadata.create_all(engine, checkfirst=False)  # a check takes as long
            except sa.exc.DBAPIError:  # a killed run left its tables behind
                metadata.drop_all(engine)
                metadata.create_all(engine)
        return self._made[metadata]

    def close(self) -> None:
        """Drop the tables."""
        for metadata, engine in self._made.items():
            metadata.drop_all(engine, checkfirst=False)
        self.database.close()


@pytest.fixture(scope="session")
def all_tables() -> Iterator[dict[str, Tables]]:
    """Keep the tables between tests: creating them takes longer than a test."""
    found: dict[str, Tables] = {}
    yield found
    for tables in found.values():
        tables.close()


@pytest.fixture
def tables(
    database: Database, all_tables: dict[str, Tables], tmp_path_factory: pytest.TempPathFactory
) -> Tables:
    """Return the tables of this database; on SQLite, in one file for all tests."""
    if database.column not in all_tables:
        own = database.kept()
        if database.name == "sqlite":
            own = new_sqlite_file(database.column, tmp_path_factory.mktemp("mappings"))
        all_tables[database.column] = Tables(own)
    return all_tables[database.column]


class Cast(NamedTuple):
    """Alice and bob, and the factory of their sessions."""

    makes: sessionmaker[LockingSession]
    actors: Sequence[Actor[LockingSession]]


def cast_for(tables: Tables, mapping: MappedDocument, *, pipeline: bool) -> Cast:
    """Add alice and bob, for documents of this mapping."""
    engine = tables.engine_of(mapping)
    makes = sessionmaker(engine, class_=LockingSession, expire_on_commit=False, pipeline=pipeline)
    return Cast(makes, [Actor(name, makes, tables.database) for name in ("alice", "bob")])


Meet = Callable[..., AbstractContextManager[Meeting]]


@pytest.fixture
def meet(tables: Tables) -> Iterator[Meet]:
    """Return a function that gives alice and bob new documents of a mapping."""
    casts: dict[tuple[str, bool], Cast] = {}

    @contextmanager
    def meet(
        mapping: MappedDocument, way: Way, changes: Sequence[str], *, pipeline: bool
    ) -> Iterator[Meeting]:
        if (mapping.name, pipeline) not in casts:
            casts[mapping.name, pipeline] = cast_for(tables, mapping, pipeline=pipeline)
        makes, actors = casts[mapping.name, pipeline]
        try:
            yield Meeting(mapping, way, changes, makes, actors)
        finally:
            for actor in actors:
                actor.does(Session.close)

    yield meet
    actors = [actor for cast in casts.values() for actor in cast.actors]
    for actor in actors:
        actor.leave()
    for actor in actors:
        actor.join()
