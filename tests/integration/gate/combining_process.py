"""A process that combines commits until it is killed: ``main(URL, CONNECT_ARGS, [STAGE])``.

It tells each number on its standard output once gate.run() has returned.  At the stage of a transaction
that comes after the first thirty it tells that it is there, and stays there.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import DocumentGate, LockingSession
from tests.integration.gate.stages import Stage
from tests.support.models import Line

THREADS, FIRST_ANSWERS, INSIDE = 12, 30, "inside"


def add_line(number: int) -> Any:
    """Return the function that adds one line with this number, and counts it in the header."""

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
