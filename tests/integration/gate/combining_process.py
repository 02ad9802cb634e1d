"""A process that combines commits until it is killed: ``main(URL, CONNECT_ARGS, [STAGE])``."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import DocumentGate, LockingSession
from tests.support.models import Line

# --------------------------------------------------------------------------------------------------
# The stages of a gate.run() transaction at which a fault can strike.

STAGES = ("lock", "function", "flush", "commit", "answer")


class Stage:
    """Acts once, when a transaction reaches this stage.

    The act runs before the lock is requested, in a function between its change and its query,
    before the flush, before COMMIT is sent, or after COMMIT but before any caller has its answer.

    :ivar is_due: acts from now on.
    """

    def __init__(
        self, name: str, engine: sa.Engine, sessions: Any, act: Callable[[], object]
    ) -> None:
        assert name in STAGES
        self.is_due, self._name, self._act = True, name, act
        if name == "lock":
            sa.event.listen(engine, "before_cursor_execute", self._before_lock)
        if name == "commit":
            sa.event.listen(engine, "commit", self._come)
        if name in ("flush", "answer"):
            event = "before_flush" if name == "flush" else "after_commit"
            sa.event.listen(sessions, event, self._come)

    def within(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, with the act inside if this is its stage."""

        def come(session: Any, document: Any) -> Any:
            result = function(session, document)
            if self._name == "function" and self.is_due:
                self._come()
                session.execute(sa.select(sa.literal(1)))
            return result

        return come

    def _before_lock(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "lk_order" in statement and statement.startswith("SELECT"):
            self._come()

    def _come(self, *_: Any) -> None:
        if self.is_due:
            self.is_due = False
            self._act()


# --------------------------------------------------------------------------------------------------
# A process that combines commits until it is killed: ``main(URL, CONNECT_ARGS, [STAGE])``.
#
# It prints each number once gate.run() returns.  At STAGE of a transaction after the first
# thirty answers, it reports that it is there, and stays there.

THREADS, FIRST_ANSWERS, INSIDE = 12, 30, "inside"


def add_line(number: int) -> Any:
    """Return a function that adds one line with this number, and counts it in the header."""

    def function(_session: LockingSession, order: Any) -> int:
        order.lines.append(Line(id=number, name="new", value=1))
        order.total += 1
        return int(order.total)

    return function


def main(url: str, connect_args: str, stage: str | None = None) -> None:
    from tests.support.models import Order  # noqa: PLC0415

    engine = sa.create_engine(url, connect_args=json.loads(connect_args), pool_size=THREADS)
    sessions = sessionmaker(engine, class_=LockingSession)
    gate, numbers, answers = DocumentGate(), itertools.count(1000), itertools.count(1)

    def tell(text: object) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def stay() -> None:
        tell(INSIDE)
        threading.Event().wait()

    here = Stage(stage or "function", engine, sessions, stay)
    here.is_due = False

    def work() -> None:
        while True:
            number = next(numbers)
            gate.run(sessions, Order, 1, here.within(add_line(number)))
            tell(number)
            if next(answers) == FIRST_ANSWERS and stage is not None:
                here.is_due = True

    for _ in range(THREADS):
        threading.Thread(target=work).start()
