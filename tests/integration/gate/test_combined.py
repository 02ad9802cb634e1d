"""gate.run(): one lock and one commit for the waiting functions, and an answer for each caller."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, NoResultFound
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    CommitUnknown,
    DocumentGate,
    LockingSession,
    LockLost,
    LockMisuse,
    LockNotAvailable,
    LockOptions,
)
from sa_doclock.process_waits import Wakeup
from tests.integration.gate.queueing import wait_until_queued
from tests.support.actors import PATIENCE, Actor
from tests.support.models import Account, Customer, Line, Order
from tests.support.tracing import CtrlC
from tests.support.waits import wait_until

Session = LockingSession
Function = Callable[[Session, Any], Any]
Send = Callable[..., Future[Any]]
ForUpdate = LockOptions.ForUpdate


@pytest.fixture
def session_factory(engine: sa.Engine) -> sessionmaker[Session]:
    """Return a factory of sessions that do not queue at the gate themselves."""
    return sessionmaker(engine, class_=LockingSession, expire_on_commit=False)


@pytest.fixture
def gate() -> DocumentGate:
    return DocumentGate(combine=4)


@pytest.fixture
def send(gate: DocumentGate, session_factory: sessionmaker[Session]) -> Iterator[Send]:
    """Return a function that calls gate.run() in a thread, and returns when that call waits."""
    with ThreadPoolExecutor(12) as threads:

        def send(function: Function, *, entity: Any = Order, ident: Any = 1, **how: Any) -> Any:
            before = gate.waiting
            run: Callable[..., Any] = gate.run
            call = threads.submit(run, session_factory, entity, ident, function, **how)
            wait_until_queued(gate, call, number=before + 1)  # type: ignore[arg-type]
            return call

        yield send


@pytest.fixture
def held(alice: Actor[Session]) -> Callable[[], None]:
    """Hold Order 1, and return the function that releases it."""
    alice.does(lambda session: session.get_one_entity(Order, 1, ForUpdate))
    return lambda: alice.does(lambda session: session.rollback())


def add(number: int) -> Function:
    def function(_session: Session, order: Any) -> int:
        order.total += number
        return int(order.total)

    return function


def fail(_session: Session, order: Any) -> None:
    order.total += 1000
    order.lines.clear()
    raise ZeroDivisionError


def total(session: Session) -> int:
    return int(session.scalars(sa.select(Order.total).where(Order.id == 1)).one())


def test_they_are_answered_in_order_after_one_lock_one_flush_and_one_commit(
    send: Send, held: Callable[[], None], engine: sa.Engine, session: Session
) -> None:
    locks: list[str] = []
    updates: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        locks.extend(re.findall("FOR UPDATE", statement))
        updates.extend(re.findall("^UPDATE|^SAVEPOINT", statement))

    sa.event.listen(engine, "before_cursor_execute", note)
    calls = [send(add(10)) for _ in range(6)]  # four of them fit into one commit
    commits: list[int] = []
    sa.event.listen(engine, "commit", lambda _: commits.append(sum(one.done() for one in calls)))
    held()
    assert [call.result(PATIENCE) for call in calls] == [40, 50, 60, 70, 80, 90]
    assert len(commits) == 2
    assert commits[0] == 0  # no caller is notified before
    assert len(locks) == (0 if engine.dialect.name == "sqlite" else 2)
    assert updates == ["UPDATE", "UPDATE"]
    assert total(session) == 90


def test_a_function_that_raises_undoes_its_own_alone(
    send: Send, held: Callable[[], None], session: Session
) -> None:
    reported: list[str] = []

    def with_mail(text: str, then: Function) -> Function:
        def function(session: Session, order: Any) -> Any:
            session.on_commit(lambda: reported.append(text))
            session.on_commit(lambda: reported.append(f"{text} again"))
            return then(session, order)

        return function

    def duplicate(session: Session, order: Any) -> None:
        order.total += 1000
        session.execute(sa.insert(Customer).values(id=1, name="again"))

    calls = [send(with_mail("a", add(1))), send(with_mail("b", fail))]
    calls += [send(with_mail("c", duplicate)), send(with_mail("d", add(2)))]
    held()
    assert [calls[0].result(PATIENCE), calls[3].result(PATIENCE)] == [31, 33]
    assert isinstance(calls[1].exception(PATIENCE), ZeroDivisionError)
    assert isinstance(calls[2].exception(PATIENCE), IntegrityError)
    assert reported == ["a", "a again", "d", "d again"]
    assert total(session) == 33
    assert len(session.get_one(Order, 1).lines) == 2


def test_the_error_of_the_commit_is_everybodys(
    send: Send, held: Callable[[], None], engine: sa.Engine, session: Session
) -> None:
    calls = [send(add(1)), send(fail), send(add(2))]

    def refuse(_connection: Any) -> None:
        raise RuntimeError("no commit")

    sa.event.listen(engine, "commit", refuse, once=True)
    held()
    errors = [call.exception(PATIENCE) for call in calls]
    assert [type(error) for error in errors] == [RuntimeError, ZeroDivisionError, RuntimeError]
    assert total(session) == 30


@pytest.mark.parametrize("end", ["rollback", "commit", "close"])
def test_a_function_that_ends_the_transaction_is_left_out(
    send: Send, held: Callable[[], None], session: Session, end: str
) -> None:
    def ends(session: Session, order: Any) -> None:
        order.total += 1000
        with suppress(LockMisuse):
            getattr(session, end)()

    calls = [send(add(1)), send(ends), send(add(2)), send(add(3)), send(add(4))]
    held()
    error = calls.pop(1).exception(PATIENCE)
    assert isinstance(error, LockMisuse)
    assert [call.result(PATIENCE) for call in calls] == [31, 33, 36, 40]
    assert total(session) == 40


def test_an_error_of_on_commit_is_its_callers(
    send: Send, held: Callable[[], None], session: Session
) -> None:
    def failing_mail(session: Session, order: Any) -> None:
        order.total += 1
        session.on_commit(lambda: 1 // 0)

    calls = [send(failing_mail), send(add(2))]
    held()
    assert isinstance(calls[0].exception(PATIENCE), ZeroDivisionError)
    assert calls[1].result(PATIENCE) == 33 == total(session)


def test_time_is_over_for_a_caller_that_waits_and_for_the_head(
    send: Send, held: Callable[[], None], session: Session
) -> None:
    head = send(add(1), lock_timeout=0.2)
    calls = [send(add(2), lock_timeout=0.1), send(add(4))]
    for call in (head, calls[0]):
        error = call.exception(PATIENCE)
        assert isinstance(error, LockNotAvailable)
        assert "Order 1" in str(error)
    held()
    assert calls[1].result(PATIENCE) == 34 == total(session)


def test_without_a_limit_of_its_own_a_caller_is_refused_with_the_head_it_has_waited_with(
    engine: sa.Engine, alice: Actor[Session], session: Session
) -> None:
    gate, made, goes_on = DocumentGate(combine=1), list[Session](), threading.Event()
    sessions = sessionmaker(engine, class_=LockingSession, lock_timeout=0.05)

    @sa.event.listens_for(sessions, "after_transaction_create")
    def begun(session: Any, transaction: Any) -> None:
        if transaction.parent is not None:  # of a flush
            return
        made.append(session)
        if len(made) == 2:  # between two transactions of the gate
            alice.does(lambda session: session.get_one_entity(Order, 1, ForUpdate))

    def wait(session: Session, order: Any) -> Any:
        assert goes_on.wait(PATIENCE)
        return add(1)(session, order)

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(gate.run, sessions, Order, 1, wait)
        wait_until(lambda: made and not gate.waiting)
        calls: list[Future[Any]] = []
        for limit in (None, None, PATIENCE):
            run: Callable[..., Any] = gate.run
            call = threads.submit(run, sessions, Order, 1, add(2), lock_timeout=limit)
            wait_until_queued(gate, number=len(calls) + 1)
            calls.append(call)
        goes_on.set()
        assert first.result(PATIENCE) == 31
        errors = [call.exception(PATIENCE) for call in calls[:2]]
        alice.does(lambda session: session.rollback())
        assert calls[2].result(PATIENCE) == 33 == total(session)
    assert [type(error) for error in errors] == [LockNotAvailable] * 2
    assert len(made) == 3


def test_a_function_that_waits_holds_up_the_queue_alone(
    send: Send, gate: DocumentGate, session_factory: Any
) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def wait(session: Session, order: Any) -> Any:
        begun.set()
        assert goes_on.wait(PATIENCE)
        return add(1)(session, order)

    with ThreadPoolExecutor(1) as thread:
        slow = thread.submit(gate.run, session_factory, Order, 1, wait)
        assert begun.wait(PATIENCE)
        second = send(add(2), lock_timeout=PATIENCE)
        if session_factory.kw["bind"].dialect.name != "sqlite":
            assert gate.run(session_factory, Order, 2, add(5)) == 10
        late = send(add(4), lock_timeout=0.1)  # the queue waits longer than this
        assert isinstance(late.exception(PATIENCE), LockNotAvailable)
        assert not second.done()
        goes_on.set()
        assert (slow.result(PATIENCE), second.result(PATIENCE)) == (31, 33)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_that_a_function_raises_is_its_own_callers(
    send: Send,
    held: Callable[[], None],
    session: Session,
    interruption: type[BaseException],
) -> None:
    def interrupt(_session: Session, order: Any) -> None:
        order.total += 1000
        raise interruption

    calls = [send(add(1)), send(interrupt), send(add(2))]
    held()
    assert [calls[0].result(PATIENCE), calls[2].result(PATIENCE)] == [31, 33]
    assert isinstance(calls[1].exception(PATIENCE), interruption)
    assert total(session) == 33


def test_of_the_main_thread_it_is_the_threads_and_the_others_run_again(
    gate: DocumentGate,
    session_factory: Any,
    send: Send,
    held: Callable[[], None],
    session: Session,
) -> None:
    runs: list[int] = []

    def interrupt_once(session: Session, order: Any) -> Any:
        runs.append(1)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt  # as Python does for Ctrl-C
        return add(2)(session, order)

    with ThreadPoolExecutor(1) as thread:

        def join() -> Any:
            wait_until_queued(gate, number=1)
            calls = [send(interrupt_once), send(add(4))]
            held()
            return calls

        joining = thread.submit(join)
        with pytest.raises(KeyboardInterrupt):
            gate.run(session_factory, Order, 1, add(1))
        assert [call.result(PATIENCE) for call in joining.result(PATIENCE)] == [32, 36]
    assert len(runs) == 2
    assert total(session) == 36


@pytest.mark.parametrize("its_turn_comes", [False, True])
def test_a_thread_that_is_interrupted_while_it_waits_takes_its_function_out(
    send: Send,
    held: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    session: Session,
    its_turn_comes: bool,
) -> None:
    class Interrupted(Wakeup):
        def wait(self, seconds: float | None) -> None:
            if its_turn_comes:
                super().wait(seconds)
            raise KeyboardInterrupt

    calls = [send(fail) for _ in range(4)]  # fill the first commit
    with monkeypatch.context() as patched:
        patched.setattr("sa_doclock.features.gate.queue.Wakeup", Interrupted)
        if its_turn_comes:
            taken_out = send(add(1000))
        else:
            with pytest.raises(KeyboardInterrupt):
                send(add(1000)).result(PATIENCE)
    last = send(add(1))
    held()
    assert last.result(PATIENCE) == 31 == total(session)
    if its_turn_comes:
        assert isinstance(taken_out.exception(PATIENCE), KeyboardInterrupt)
    assert [type(call.exception(PATIENCE)) for call in calls] == [ZeroDivisionError] * 4


def test_the_next_thread_is_told_that_it_is_its_turn_though_an_interruption_comes_before(
    send: Send, held: Callable[[], None], monkeypatch: pytest.MonkeyPatch, session: Session
) -> None:
    class Missed(Wakeup):
        missed = False

        def notify(self) -> bool:
            if not self.missed:
                self.missed = True
                raise KeyboardInterrupt
            return super().notify()

    calls = [send(fail) for _ in range(4)]  # fill the first commit
    with monkeypatch.context() as patched:
        patched.setattr("sa_doclock.features.gate.queue.Wakeup", Missed)
        last = send(add(1))
    held()
    assert last.result(PATIENCE) == 31 == total(session)
    errors = [call.exception(PATIENCE) for call in calls]
    assert [type(error) for error in errors] == [*[ZeroDivisionError] * 3, KeyboardInterrupt]


def test_savepoints_of_a_function_that_are_left_open_are_its_own_affair(
    send: Send, held: Callable[[], None], session: Session
) -> None:
    def leave_open(session: Session, order: Any) -> Any:
        session.begin_nested()
        return add(10)(session, order)

    def fail_in_it(session: Session, order: Any) -> None:
        session.begin_nested()
        order.total += 1000
        session.flush()
        session.begin_nested()
        fail(session, order)

    calls = [send(add(1)), send(leave_open), send(fail_in_it), send(add(2))]
    held()
    assert [calls[0].result(PATIENCE), calls[1].result(PATIENCE)] == [31, 41]
    assert isinstance(calls[2].exception(PATIENCE), ZeroDivisionError)
    assert calls[3].result(PATIENCE) == 43 == total(session)
    assert len(session.get_one(Order, 1).lines) == 2


def test_what_a_listener_of_the_flush_gives_to_on_commit_is_the_heads(
    send: Send, held: Callable[[], None], session: Session
) -> None:
    reported: list[str] = []

    def with_listener(session: Session, order: Any) -> Any:
        def mail(*_: object) -> None:
            session.on_commit(lambda: 1 // 0)

        sa.event.listen(session, "after_flush", mail, once=True)
        session.on_commit(lambda: reported.append("mail"))
        return add(1)(session, order)

    calls = [send(add(1)), send(with_listener), send(add(2))]
    held()
    assert isinstance(calls[0].exception(PATIENCE), ZeroDivisionError)
    assert [calls[1].result(PATIENCE), calls[2].result(PATIENCE)] == [32, 34]
    assert reported == ["mail"]
    assert total(session) == 34


@pytest.mark.parametrize("when", ["commit", "after_commit"])
def test_what_an_interrupted_commit_has_saved_nobody_calls_lost(
    send: Send,
    held: Callable[[], None],
    session_factory: sessionmaker[Session],
    engine: sa.Engine,
    session: Session,
    when: str,
) -> None:
    calls = [send(add(1)), send(add(2))]

    def interrupt_once(session: Session) -> None:
        if not session.in_nested_transaction() and when == "after_commit":
            press_ctrl_c()

    sa.event.listen(session_factory, "after_commit", interrupt_once)
    if when == "commit":
        sa.event.listen(engine, "commit", press_ctrl_c, once=True)
    held()
    assert isinstance(calls[0].exception(PATIENCE), KeyboardInterrupt)
    if when == "after_commit":
        assert calls[1].result(PATIENCE) == 33 == total(session)
    else:
        error = calls[1].exception(PATIENCE)
        assert isinstance(error, CommitUnknown)
        assert not isinstance(error, LockLost)  # LockLost says that nothing was saved
        assert error.connection_invalidated
        assert "may or may not be saved" in str(error)


def press_ctrl_c(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_interruption_of_an_on_commit_function_is_its_callers(
    send: Send, held: Callable[[], None], session: Session
) -> None:
    reported: list[str] = []

    def with_mail(mail: Callable[[], object]) -> Function:
        def function(session: Session, order: Any) -> Any:
            session.on_commit(mail)
            return add(1)(session, order)

        return function

    calls = [send(add(1)), send(with_mail(press_ctrl_c))]
    calls.append(send(with_mail(lambda: reported.append("mail"))))
    held()
    assert [calls[0].result(PATIENCE), calls[2].result(PATIENCE)] == [31, 33]
    assert isinstance(calls[1].exception(PATIENCE), KeyboardInterrupt)
    assert total(session) == 33
    assert reported == ["mail"]


INTERRUPTED = (
    "sa_doclock.features.gate.combined",
    "sa_doclock.features.gate.document_gate",
    "sa_doclock.features.gate.combined_turn",
    "contextlib",
)


class Meeting:
    """Three callers in one transaction; the others join when the first one begins it."""

    def __init__(self, threads: ThreadPoolExecutor, engine: sa.Engine) -> None:
        self.gate, self._threads = DocumentGate(combine=4), threads
        self.sessions = sessionmaker(engine, class_=LockingSession)
        self.joining, self.others = 2, list[Future[Any]]()
        sa.event.listen(self.sessions, "after_transaction_create", self._join)

    def _join(self, *_: object) -> None:
        while len(self.others) < self.joining:
            self.others.append(self._threads.submit(self.gate.run, self.sessions, Order, 1, add(1)))
            wait_until(lambda: self.gate.waiting >= len(self.others))

    def begin(self) -> Any:
        return self.gate.run(self.sessions, Order, 1, add(1))


@pytest.mark.slow
def test_ctrl_c_at_any_line_leaves_nobody_waiting_and_nobody_misinformed(
    engine: sa.Engine, session: Session
) -> None:
    ctrl_c, saved, interrupted = CtrlC(*INTERRUPTED), 30, True
    with ThreadPoolExecutor(2) as threads:
        while interrupted:
            meeting = Meeting(threads, engine)
            interrupted = ctrl_c.during(meeting.begin)
            errors = [other.exception(PATIENCE) for other in meeting.others]
            kinds = {type(error) for error in errors}
            assert kinds <= {LockLost, CommitUnknown, type(None)}
            found, told = total(session) - saved, errors.count(None)
            session.rollback()
            assert found in {told, told + 1} or CommitUnknown in kinds, ctrl_c.raised
            saved += found + 1
            meeting.joining = 0
            assert meeting.begin() == saved
            assert meeting.gate.waiting == 0


def test_a_missing_document_and_what_is_no_function(
    gate: DocumentGate, session_factory: Any, engine: sa.Engine
) -> None:
    async def awaited(_session: Any, _order: Any) -> None: ...

    with pytest.raises(NoResultFound):
        gate.run(session_factory, Order, 99, add(1))
    for factory, function in (
        (session_factory(), add(1)),
        (session_factory, None),
        (session_factory, awaited),
        (sessionmaker(engine), add(1)),
    ):
        with pytest.raises(TypeError):
            gate.run(factory, Order, 1, function)  # type: ignore[arg-type]
    assert gate.waiting == 0


def test_its_session_does_not_wait_for_a_garbage_collection(
    gate: DocumentGate, session_factory: Any
) -> None:
    made: list[weakref.ref[Session]] = []

    def sessions() -> Session:
        session: Session = session_factory()
        made.append(weakref.ref(session))
        return session

    gc.disable()
    try:
        gate.run(sessions, Order, 1, add(1))
        with pytest.raises(ZeroDivisionError) as raised:
            gate.run(sessions, Order, 1, fail)
        del raised  # with the frames of its traceback
        assert {session() for session in made} == {None}
    finally:
        gc.enable()


def test_each_has_the_parts_of_the_one_before_and_the_context_of_its_caller(
    gate: DocumentGate, session_factory: Any, held: Callable[[], None], session: Session
) -> None:
    caller: ContextVar[str] = ContextVar("caller")

    def add_line(_session: Session, order: Any) -> tuple[str, int]:
        order.lines.append(Line(id=100 + len(order.lines), name=caller.get(), value=1))
        return caller.get(), len(order.lines)

    def call(name: str) -> Any:
        caller.set(name)
        return gate.run(session_factory, Order, 1, add_line)

    with ThreadPoolExecutor(2) as threads:
        calls = []
        for number, name in enumerate(("ann", "ben")):
            calls.append(threads.submit(call, name))
            wait_until_queued(gate, number=number + 1)
        held()
        assert [one.result(PATIENCE) for one in calls] == [("ann", 3), ("ben", 4)]
    assert [line.name for line in session.get_one(Order, 1).lines[-2:]] == ["ann", "ben"]


TENANT: ContextVar[sa.Engine] = ContextVar("TENANT")


class RoutingSession(LockingSession):
    def get_bind(self, *_: Any, **__: Any) -> Any:
        return TENANT.get()


class TenantSession(LockingSession):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "bind": TENANT.get()})


FACTORIES: dict[str, Callable[[], Session]] = {
    "a function": lambda: LockingSession(TENANT.get()),
    "a class": TenantSession,
    "get_bind()": sessionmaker(class_=RoutingSession),
    "__init__()": sessionmaker(class_=TenantSession),
}


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
def test_each_tenant_has_its_own_document_whatever_the_factory(
    factory: Callable[[], Session],
    gate: DocumentGate,
    held: Callable[[], None],
    session: Session,
    tmp_path: Path,
) -> None:
    ours, theirs = session.get_bind(), sa.create_engine(f"sqlite:///{tmp_path / 'theirs'}")
    session.execute(sa.text(f"VACUUM INTO '{tmp_path / 'theirs'}'"))
    session.rollback()

    def call(tenant: Any) -> Any:
        TENANT.set(tenant)
        return gate.run(factory, Order, 1, add(10))

    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(call, ours)
        wait_until_queued(gate, number=1)
        try:
            assert threads.submit(call, theirs).result(PATIENCE) == 40
        finally:
            held()
        assert waiting.result(PATIENCE) == 40
    theirs.dispose()


def test_a_version_is_raised_once_for_the_functions_of_one_transaction(
    send: Send, alice: Actor[Session], session: Session
) -> None:
    alice.does(lambda session: session.get_one_entity(Account, 1, ForUpdate))
    calls = [send(add(1), entity=Account) for _ in range(3)]
    alice.does(lambda session: session.rollback())
    assert [call.result(PATIENCE) for call in calls] == [31, 32, 33]
    assert session.get_one(Account, 1).version == 2  # it was 1


def test_a_version_is_raised_for_each_transaction(
    gate: DocumentGate, session_factory: Any, session: Session
) -> None:
    for _ in range(2):
        gate.run(session_factory, Account, 1, add(1))
    account = session.get_one(Account, 1)
    assert (account.version, account.total) == (3, 32)
