"""A process forks while its session holds a lock: the transaction remains the parent's."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import scoped_session, sessionmaker

from sa_doclock import LockingSession, LockMisuse, LockNotAvailable, LockOptions
from tests.integration.questions.conftest import ASYNCHRONOUS, DRIVERS, run_on, url_of
from tests.integration.timeouts.ways import Wire
from tests.support.databases import Database
from tests.support.models import Line, Order
from tests.support.rows import rows

# --------------------------------------------------------------------------------------------------
# A program that forks while its session holds order 1: ``python -m ... URL CASE...``.
#
# For each case it locks and writes the order, prints ``locked``, and waits for a line.  It forks,
# prints the child's exit status, and waits again.  Then it commits, and waits once more.  A child
# prints a line only if something is wrong.

ForUpdate = LockOptions.ForUpdate
NOWAIT = ForUpdate | LockOptions.NoWait


class Parent(NamedTuple):
    """The objects that the parent held when it forked."""

    registry: scoped_session[LockingSession]
    session: LockingSession
    connection: sa.Connection
    engine: sa.Engine


def write_and_flush(session: LockingSession) -> None:
    session.get_one(Order, 1).total = 0
    session.flush()


USES: dict[str, Callable[[LockingSession], object]] = {
    "get_entity of what is held": lambda session: session.get_entity(Order, 1, ForUpdate),
    "get_entity": lambda session: session.get_entity(Order, 2, ForUpdate),
    "get_document": lambda session: session.get_document(Order, 1),
    "lock_key": lambda session: session.lock_key("a name"),
    "with_for_update": lambda session: session.get(Order, 2, with_for_update=True),
    "a plain read": lambda session: session.get(Order, 2),
    "a lazy load": lambda session: session.get_one(Order, 1).lines,
    "select": lambda session: session.scalars(sa.select(Order)),
    "text": lambda session: session.execute(sa.text("SELECT 1")),
    "update": lambda session: session.execute(sa.update(Order).values(total=0)),
    "bulk": lambda session: session.bulk_insert_mappings(Order, [{"id": 3, "total": 0}]),
    "flush": write_and_flush,
    "commit": lambda session: session.commit(),
    "save_changes": lambda session: session.save_changes(),
    "release_locks": lambda session: session.release_locks(),
    "begin_nested": lambda session: session.begin_nested(),
    "connection": lambda session: session.connection(),
    "another bind": lambda session: session.connection({"bind": session.bind}),
}


def all_refused(parent: Parent) -> None:
    for name, use in USES.items():
        refuses(name, lambda use=use: use(parent.session))  # type: ignore[misc]
    for name in ("execute", "exec_driver_sql"):
        statement: Any = sa.text("SELECT 1") if name == "execute" else "SELECT 1"
        refuses(name, lambda: getattr(parent.connection, name)(statement))  # noqa: B023
    if parent.session.held_locks:
        print("held_locks is not empty")


def refuses(name: str, use: Callable[[], object]) -> None:
    try:
        use()
    except LockMisuse as error:
        if error.ident != 1 or f"process {os.getppid()}" not in str(error):
            print(name, "has the error", repr(error))
    except Exception as error:  # noqa: BLE001  # it is reported
        print(name, "raises", repr(error))
    else:
        print(name, "is not refused")


def garbage(parent: Parent) -> None:
    parent.registry.registry.clear()
    del parent
    gc.collect()


def close_driver(parent: Parent) -> None:
    with suppress(Exception):  # it cannot tell the server, and may raise
        driver: Any = parent.connection.connection.driver_connection
        getattr(driver, "terminate", driver.close)()  # close() of asyncpg is a coroutine function


def commit_connection(parent: Parent) -> None:
    refuses("commit of the connection", parent.connection.commit)
    ignore_end()


def close_connection(parent: Parent) -> None:
    parent.connection.close()
    ignore_end()


def ignore_end() -> None:
    """Ignore SQLAlchemy's warning that the program ended the transaction without the session."""
    warnings.simplefilter("ignore", sa.exc.SAWarning)


def use_again(parent: Parent) -> None:
    """Roll back, and use the session for a new transaction of the child."""
    parent.session.rollback()
    parent.engine.dispose(close=False)
    with suppress(LockNotAvailable):
        print("the child has the lock too:", parent.session.get_entity(Order, 1, NOWAIT))
    parent.session.rollback()
    parent.session.get_one_entity(Order, 2, ForUpdate).total += 1
    parent.session.add(Line(id=777 + os.getpid(), order_id=2, name="of the child", value=1))
    parent.session.save_changes()
    parent.session.close()
    parent.engine.dispose()


CASES: dict[str, Callable[[Parent], object]] = {
    "refused": all_refused,
    "exit": lambda _: None,
    "rollback": lambda parent: parent.session.rollback(),
    "close": lambda parent: parent.session.close(),
    "reset": lambda parent: parent.session.reset(),
    "invalidate": lambda parent: parent.session.invalidate(),
    "remove": lambda parent: parent.registry.remove(),
    "savepoint": lambda parent: parent.session.get_transaction().rollback(),  # type: ignore[union-attr]
    "garbage": garbage,
    "connection": close_connection,
    "connection committed": commit_connection,
    "driver": close_driver,
    "dispose": lambda parent: parent.engine.dispose(),
    "used again": use_again,
}


def play_all(engine: sa.Engine, cases: Iterable[str]) -> None:
    for case in cases:
        play(engine, case)


def play(engine: sa.Engine, case: str) -> None:
    registry = scoped_session(sessionmaker(engine, class_=LockingSession))
    session = registry()
    # In a block of begin(), SQLAlchemy begins no other transaction.
    with session, nullcontext() if case == "used again" else session.begin():
        session.get_one_entity(Order, 1, ForUpdate).total += 10
        session.flush()
        session.expire(session.get_one(Order, 1), ["lines"])
        print("locked")
        sys.stdin.readline()
        child = os.fork()
        if not child:
            CASES[case](Parent(registry, session, connection_of(session), engine))
            sys.exit()  # through all blocks, to the interpreter's exit
        print("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        sys.stdin.readline()
        if not session.held_locks:
            print("the parent has lost its lock")
        if case == "used again":
            session.commit()
    registry.remove()
    print("committed")
    sys.stdin.readline()


def connection_of(session: LockingSession) -> sa.Connection:
    """Return the connection, bypassing the session's refusal."""
    (found,) = session._context.connections.all()
    return found


def main(url: str, *cases: str) -> None:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    run_on(sa.make_url(url), lambda engine: play_all(engine, cases))


# --------------------------------------------------------------------------------------------------
# The tests.


class Program:
    """The program above, as a process."""

    def __init__(self, url: sa.URL, *cases: str) -> None:
        text = url.render_as_string(hide_password=False)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.forks.test_forks", text, *cases],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def read(self, line: str) -> None:
        """Assert that this is the next line."""
        assert self.process.stdout is not None
        found = self.process.stdout.readline().strip()
        if found != line:
            self.process.terminate()
            pytest.fail(f"{found}\n{self.process.stdout.read()}")

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextmanager
def running(url: sa.URL, *cases: str) -> Iterator[Program]:
    program = Program(url, *cases)
    with program.process as process:
        try:
            yield program
        finally:
            process.kill()


def check(case: str, program: Program, wire: Wire | None, engine: sa.Engine) -> None:
    """Check that nothing reaches the server while the child runs, and that the parent saves."""
    before = total(engine)
    program.read("locked")
    sent = 0 if wire is None else wire.sent
    program.go_on()
    program.read("status 0")
    if wire is not None and case != "used again":  # it has a separate connection
        assert wire.sent == sent, case
    assert is_locked(engine), case
    program.go_on()
    program.read("committed")
    assert not is_locked(engine), case
    assert total(engine) == before + 10, case
    program.go_on()


def is_locked(engine: sa.Engine) -> bool:
    with LockingSession(engine) as session:
        try:
            session.get_entity(Order, 1, NOWAIT)
        except LockNotAvailable:
            return True
        return False


def total(engine: sa.Engine) -> Any:
    with engine.connect() as connection:
        return connection.scalar(sa.select(Order.total).where(Order.id == 1))


@pytest.mark.slow
@pytest.mark.databases("postgresql", "mysql", "mariadb")
@rows("driver", sorted({driver for drivers in DRIVERS.values() for driver in drivers}))
def test_the_child_sends_nothing(documents: Database, engine: sa.Engine, driver: str) -> None:
    if driver not in DRIVERS[documents.name]:
        return
    given = sa.make_url(documents.url)
    wire = Wire(given.host or "127.0.0.1", given.port or 0)
    given = given.set(host="127.0.0.1", port=wire.port)
    url = url_of(documents, driver, given)
    if driver in ("psycopg", "psycopg2"):
        url = url.update_query_dict({"sslmode": "disable", "gssencmode": "disable"})
    if driver in ("pg8000", "asyncpg"):
        url = url.set(query={})
    # The parent's loop does not run in the child.
    cases = [case for case in CASES if driver not in ASYNCHRONOUS or case != "used again"]
    with running(url, *cases) as program:
        for case in cases:
            check(case, program, wire, engine)


@pytest.mark.databases("sqlite")
def test_the_child_leaves_the_file_alone(documents: Database, engine: sa.Engine) -> None:
    # The driver's own close() would roll back, and the child has no connection of its own.
    cases = [case for case in CASES if case not in ("driver", "used again")]
    with running(sa.make_url(documents.url), *cases) as program:
        for case in cases:
            check(case, program, None, engine)


if __name__ == "__main__":
    main(*sys.argv[1:])
