"""dramatiq: a session for each message, messages after the commit, retries by the error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingScopedSession, LockingSession, LockNotAvailable, LockOptions
from tests.frameworks.program import (
    ON_TWO_DATABASES,
    Order,
    Program,
    add_line,
    add_ten,
    is_free,
    save,
    stored,
)
from tests.support.actors import Actor

pytest.importorskip("dramatiq", reason="DRAMATIQ IS NOT TESTED")
import dramatiq
from dramatiq import Message, Middleware, Worker
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import Retries

pytestmark = ON_TWO_DATABASES
Alice = Actor[LockingSession]
FOR_UPDATE = LockOptions.ForUpdate


class EndOfScope(Middleware):
    """Ends the session of the thread with each message, as the page says."""

    def __init__(self, session: LockingScopedSession[LockingSession]) -> None:
        self.session = session

    def after_process_message(self, *_: Any, **__: Any) -> None:
        self.session.remove()

    after_skip_message = after_process_message


def is_retried(retries: int, error: BaseException) -> bool:
    return retries < 3 and getattr(error, "retryable", False)


@pytest.fixture
def session(program: Program) -> LockingScopedSession[LockingSession]:
    return LockingScopedSession(sessionmaker(program.engine(), class_=LockingSession))


@pytest.fixture
def broker(session: LockingScopedSession[LockingSession]) -> Iterator[StubBroker]:
    retries = Retries(min_backoff=1, max_backoff=5, retry_when=is_retried)
    broker = StubBroker(middleware=[retries, EndOfScope(session)])
    broker.emit_after("process_boot")
    worker = Worker(broker, worker_timeout=10, worker_threads=4)
    worker.start()
    yield broker
    worker.stop()
    broker.close()


def run_all(broker: StubBroker, actor: Any, *messages: Message[Any]) -> None:
    for message in messages:
        broker.enqueue(message)
    broker.join(actor.queue_name, timeout=30_000, fail_fast=False)


def test_workers_wait_for_each_other(
    broker: StubBroker, session: LockingScopedSession[LockingSession], alice: Alice
) -> None:
    @dramatiq.actor(broker=broker)
    def post_line(ident: int) -> None:
        with session.locked_document(Order, ident) as order:
            add_line(order, 5)

    run_all(broker, post_line, *(post_line.message(1) for _ in range(8)))
    assert alice.does(stored) == (70, [10, 20, *[5] * 8])


def test_a_message_goes_out_after_the_commit_or_never(
    broker: StubBroker, session: LockingScopedSession[LockingSession]
) -> None:
    seen: list[int] = []

    @dramatiq.actor(broker=broker)
    def print_order(total: int) -> None:
        with session.locked(Order, 1) as order:  # the sender's lock is gone
            seen.extend((total, order.total))

    def post_line(value: int) -> None:
        with session.locked_document(Order, 1) as order:
            total = add_line(order, value)
            session.on_commit(lambda: print_order.send(total))
            assert not broker.queues[print_order.queue_name].qsize()
            if value < 0:
                raise ValueError(value)

    with pytest.raises(ValueError, match="-5"):
        post_line(-5)
    post_line(5)
    session.remove()
    broker.join(print_order.queue_name, timeout=30_000, fail_fast=False)
    assert seen == [35, 35]


def test_a_message_that_fails_leaves_no_lock_on_its_thread(
    broker: StubBroker, session: LockingScopedSession[LockingSession], alice: Alice
) -> None:
    @dramatiq.actor(broker=broker)
    def forget(ident: int) -> None:
        session.get_one_document(Order, ident, FOR_UPDATE).total = 7
        raise ValueError(ident)

    run_all(broker, forget, forget.message(1))
    assert alice.does(is_free)
    assert alice.does(stored) == (30, [10, 20])


def test_what_is_retryable_is_tried_again(
    broker: StubBroker, session: LockingScopedSession[LockingSession], alice: Alice
) -> None:
    failures: list[type[Exception]] = []

    @dramatiq.actor(broker=broker)
    def post_line(ident: int) -> None:
        try:
            with session.locked_document(Order, ident, lock_timeout=0) as order:
                add_line(order, 5)
        except LockNotAvailable as error:
            failures.append(type(error))
            alice.does(save)  # the holder ends before the next attempt
            raise

    alice.does(add_ten)
    run_all(broker, post_line, post_line.message(1))
    assert failures == [LockNotAvailable]
    assert alice.does(stored) == (45, [10, 20, 10, 5])
