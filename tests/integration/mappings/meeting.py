"""Two sessions that meet at documents: one changes them while the other waits for the lock."""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import count
from typing import Any

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
from tests.support.waits import wait_until, wait_until_blocked

ForUpdate = LockOptions.ForUpdate

#: Where a shared read is a snapshot, for which nobody waits.
_SNAPSHOTS = ("sqlite", "mssql")

_WAITING = text("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")

#: The numbers of new documents, by the class of their details.
_numbers: dict[Any, Iterator[int]] = defaultdict(lambda: count(1))


class Pair:
    """Two documents, of which a change is made.

    :ivar plain: what they are to be, as objects without a mapping.
    """

    def __init__(self, mapping: MappedDocument, change: str) -> None:
        numbers = _numbers[mapping.line]
        self.change = change
        self.numbers = [next(numbers), next(numbers)]
        self.plain: list[PlainHeader] = [PLAIN.new(0, FIRST), PLAIN.new(0, SECOND)]

    def expected(self, mapping: MappedDocument) -> list[State]:
        """Return the states that they are to have."""
        return [mapping.expected(one) for one in self.plain]


class Meeting:
    """Alice changes documents while bob waits for them.

    :param way: bob's.
    :param changes: names of what alice does, each to two documents of its own.
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
        """Make each change while bob waits; return what has failed, by the name of the change."""
        known = None if self._way.claims else self._bob.does(self._read)
        failures = {pair.change: failure for pair in self._pairs if (failure := self._try(pair))}
        with self._plain_session() as session:
            headers = self._all_headers(session)
            for pair in self._pairs:
                states = [self._mapping.state(one) for one in self._headers(session, pair)]
                if states != pair.expected(self._mapping):
                    saved = f"saved is {states}, not {pair.expected(self._mapping)}"
                    failures.setdefault(pair.change, saved)
        del headers, known  # the identity map is weak, and what bob knew was to be stale until now
        return failures

    def _try(self, pair: Pair) -> str:
        try:
            return "; ".join(self._meet(pair))
        except Exception:  # noqa: BLE001  # the other changes are made all the same
            self._alice.does(Session.rollback)
            self._bob.does(Session.rollback)
            return traceback.format_exc(limit=-4)

    def lock_at_once(self) -> None:
        """Have bob lock what nobody holds."""
        (pair,) = self._pairs
        self._bob.does(lambda session: self._take(session, pair, lambda *_: None))

    def _plain_session(self) -> Session:
        return Session(self._makes.kw["bind"])

    def _read(self, session: LockingSession) -> list[Any]:
        """Return all objects of the documents, in a session that ends its transaction."""
        found = self._all_headers(session)
        for pair in self._pairs:
            headers = self._headers(session, pair)
            assert [self._mapping.state(one) for one in headers] == pair.expected(self._mapping)
            found += [line for one in headers for line in self._mapping.members(one)]
        session.commit()
        return found

    def _all_headers(self, session: Session) -> list[Any]:
        """Read the headers of all pairs at once; who keeps them spares _headers() its statements."""
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
        """Have alice hold both documents, bob wait, and alice change them; yield what is wrong."""
        held = self._alice.does(lambda session: self._lock(session, pair))
        mapping, way = self._mapping, self._way
        taken = slice(2 if way.many else 1)
        seen: list[list[State]] = []
        locks: list[dict[Any, LockOptions]] = []

        def work(session: LockingSession, headers: list[Any]) -> None:
            locks.append(dict(session.held_locks))  # before and after all that follows
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
        """Check that nothing is sent for a weaker lock, and that a stronger one is refused."""
        mapping = self._mapping
        ask = partial(session.get_entity, mapping.header, mapping.ident(number))
        sent: list[Any] = []
        connection = session.connection()
        ask(LockOptions.SharedRead)  # who is given the connection may have ended the transaction
        event.listen(connection, "before_cursor_execute", lambda *args: sent.append(args[2]))
        known = ask(LockOptions.SharedRead)
        assert known is ask(self._way.lock), "another object is the same document"
        if self._way.lock is not ForUpdate:
            with pytest.raises(LockUpgradeRefused):
                ask(ForUpdate)
        assert not sent, "the document is held"

    def _wait(self, step: Step[None]) -> None:
        """Return when the server says that bob waits for alice."""
        if self._bob.database.name != "mariadb":
            wait_until_blocked(self._bob, self._alice, step)
            return
        # Who waits for whom is reported there from a copy that is 0.1 s old; nobody else is here.
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
