"""The connection breaks while statements travel together: all of them take effect, or none."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sa_doclock import LockingSession, LockLost, LockOptions
from tests.integration.pipeline.conftest import Sessions
from tests.integration.pipeline.models import ON_POSTGRESQL, Bill, Item, Note
from tests.integration.timeouts.ways import Wire
from tests.support.databases import PGPOOL, Database

pytestmark = [*ON_POSTGRESQL]


# --------------------------------------------------------------------------------------------------
# A wire that breaks while data is in transit.


class CuttingWire(Wire):
    """Lets only the first part of one message through, and nothing more of its connection."""

    def __init__(self, host: str, port: int) -> None:
        self._cut: tuple[str, float] | None = None
        self._messages = 0
        super().__init__(host, port)

    def break_next(self, direction: str, share: float, nth: int = 1) -> None:
        """Break the connection at a message in this direction.

        :param direction: "there" or "back".
        :param share: the share of the message's bytes that still arrive.
        :param nth: which message, counted from now on.
        """
        self._messages = nth
        self._cut = direction, share

    @property
    def broken(self) -> bool:
        """Return whether the connection broke."""
        return self._cut is None

    def _pass_on(self, one: socket.socket, other: socket.socket, direction: str) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                cut = self._cut
                if cut is not None and cut[0] == direction:
                    self._messages -= 1
                if cut is not None and cut[0] == direction and not self._messages:
                    self._cut = None
                    other.sendall(data[: int(len(data) * cut[1])])
                    break
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


# --------------------------------------------------------------------------------------------------
# The connection breaks while statements travel together: all of them take effect, or none.
#
# A commit that was reported stays committed, and the session remains usable.

ForUpdate = LockOptions.ForUpdate
SHARES = [eighth / 8 for eighth in range(9)]


@pytest.fixture
def wire(bills: Database) -> Iterator[CuttingWire]:
    """Run a proxy in front of the server, which can cut connections."""
    url = sa.make_url(bills.url)
    wire = CuttingWire(url.host or "127.0.0.1", url.port or 5432)
    yield wire
    wire.close()


def change(session: LockingSession, number: int) -> None:
    """Make changes that need several statements; send none of them yet."""
    bill = session.get_document(Bill, 1, ForUpdate)
    assert bill is not None
    bill.total = number
    for item in bill.items:
        item.value = number
    session.get_one(Note, 1).number = number


def numbers(elsewhere: sa.Engine) -> set[int]:
    """Return the committed numbers, after the server has closed the broken connection."""
    with elsewhere.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        connection.execute(sa.select(Bill.id).where(Bill.id == 1).with_for_update()).all()
        total = connection.scalars(sa.select(Bill.total).where(Bill.id == 1)).one()
        items = connection.scalars(sa.select(Item.value)).all()
        note = connection.scalars(sa.select(Note.number).where(Note.id == 1)).one()
        connection.exec_driver_sql("ROLLBACK")
    return {total, note, *items}


CUTS = [("back", 1, share) for share in SHARES]
CUTS += [("there", nth, share) for nth in range(1, 8) for share in (0.0, 0.5, 1.0)]


@pytest.mark.slow
def test_in_what_travels_with_commit(
    bills: Database,
    session: LockingSession,
    engine: sa.Engine,
    wire: CuttingWire,
    elsewhere: sa.Engine,
) -> None:
    before, reported, failed = numbers(elsewhere), [], 0
    for number, (direction, nth, share) in enumerate(CUTS, start=41):
        change(session, number)
        session.on_commit(lambda number=number: reported.append(number))  # type: ignore[misc]
        wire.break_next(direction, share, nth)
        try:
            session.save_changes()
        except DBAPIError as error:
            failed += 1
            lost = error.connection_invalidated
            # LockLost would claim that nothing is saved.
            in_doubt = error.statement == "COMMIT" and not isinstance(error, LockLost)
            session.rollback()
            assert lost
            assert in_doubt
            assert reported == []
        else:  # the whole answer arrived
            assert reported.pop() == number
            before = {number}
            wire.break_next("nowhere", 0)
            engine.dispose()  # its driver does not know that the connection broke
        assert not session.held_locks
        after = numbers(elsewhere)
        assert after in (before, {number}), (direction, nth, share)
        # The server did it, unseen by the client; pgpool-II answers piece by piece, before that.
        if direction == "back" and bills.column != PGPOOL:
            assert after == {number}
        before = after
    assert failed > len(SHARES)
    change(session, 99)
    session.save_changes()
    assert numbers(elsewhere) == {99}


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["there", "back"])
def test_in_what_travels_with_a_lock(
    session: LockingSession,
    engine: sa.Engine,
    wire: CuttingWire,
    elsewhere: sa.Engine,
    direction: str,
) -> None:
    ways: list[Callable[[], Any]] = [
        lambda: session.get_document(Bill, 1, ForUpdate, lock_timeout=29.5),
        lambda: session.get_one_entity(Bill, 1, ForUpdate),
        lambda: session.lock_key("a name"),
    ]
    for way in ways:
        for share in SHARES[:-1]:  # with all of it, the whole answer arrives
            with engine.connect():
                pass  # the connection is back in the pool
            wire.break_next(direction, share)
            with pytest.raises(DBAPIError) as caught:
                way()
            assert caught.value.connection_invalidated
            assert not session.in_transaction()
            assert not session.held_locks
    change(session, 99)
    session.save_changes()
    assert numbers(elsewhere) == {99}


def test_the_server_ends_the_connection(session: LockingSession, elsewhere: sa.Engine) -> None:
    before = numbers(elsewhere)
    change(session, 41)
    pid = session.connection().exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    with elsewhere.connect() as connection:
        connection.execute(sa.select(sa.func.pg_terminate_backend(pid)))
    with pytest.raises(DBAPIError) as caught:
        session.save_changes()
    assert caught.value.connection_invalidated
    session.rollback()
    assert numbers(elsewhere) == before


def test_a_session_that_is_closed_instead(
    make: Sessions, wire: CuttingWire, elsewhere: sa.Engine
) -> None:
    session = make()
    change(session, 41)
    wire.break_next("there", 0.5)
    with pytest.raises(DBAPIError):
        session.save_changes()
    session.close()
    change(session, 42)
    session.save_changes()
    assert numbers(elsewhere) == {42}
