"""A process that combines commits until it is killed: ``main(URL, CONNECT_ARGS)``.

It tells each number on its standard output once gate.run() has returned.
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
from tests.support.models import Line

THREADS = 12


def add_line(number: int) -> Any:
    """Return the function that adds one line with this number, and counts it in the header."""

    def function(_session: LockingSession, order: Any) -> int:
        order.lines.append(Line(id=number, name="new", value=1))
        order.total += 1
        return int(order.total)

    return function


def main(url: str, connect_args: str) -> None:
    from tests.support.models import Order  # noqa: PLC0415

    engine = sa.create_engine(url, connect_args=json.loads(connect_args), pool_size=THREADS)
    sessions = sessionmaker(engine, class_=LockingSession)
    gate, numbers = DocumentGate(), itertools.count(1000)

    def work() -> None:
        while True:
            number = next(numbers)
            gate.run(sessions, Order, 1, add_line(number))
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()

    for _ in range(THREADS):
        threading.Thread(target=work).start()
