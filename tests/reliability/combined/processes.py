"""Processes with callers, and a check of their answers: a single order of commits must explain them."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

import sqlalchemy as sa

from lab.running.processes import Forked
from tests.integration.asyncio.drivers import DRIVERS, url_for
from tests.support.databases import Database
from tests.support.models import Customer, Order

# --------------------------------------------------------------------------------------------------
# Checks gate.run() answers: a single order of commits must explain them.
#
# Each function raises the counter of one document and returns it.  The counter numbers the functions
# in commit order, and the numbers can be compared with the callers' times, even across
# processes, because Linux has one monotonic clock for all of them.


class Answer(NamedTuple):
    """An answered call.

    :ivar key: of the row that its function inserted, with the number in it.
    :ivar arrival: its place among the calls of its process.
    :ivar invoked: the time of the call; ``answered`` is the time of the answer.
    """

    process: int
    key: int
    arrival: int
    invoked: float
    answered: float
    number: int


def wrong(answers: Sequence[Answer], stored: Mapping[int, int], counted: range) -> Iterator[str]:
    """Yield the answers that no order of commits explains.

    :param stored: the numbers in the rows, by their keys.
    :param counted: the final number of the counter.
    """
    times = Counter(one.number for one in answers)
    yield from (f"{number} was given {n} times" for number, n in times.items() if n > 1)
    for one in answers:
        if stored.get(one.key) != one.number:
            yield f"{one.number} was answered, and {stored.get(one.key)} is saved"
    if sorted(stored.values()) != [*counted]:
        yield f"{sorted(stored.values())} are saved, and the counter has given {counted}"
    yield from _against_the_clock(answers)
    yield from _against_the_arrival(answers)


def _against_the_clock(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield the calls that began after a call with a greater number was answered."""
    earliest = math.inf  # among the answers with a greater number
    for one in sorted(answers, key=lambda one: one.number, reverse=True):
        if earliest < one.invoked:
            yield f"{one.number} was called after a greater number was answered"
        earliest = min(earliest, one.answered)


def _against_the_arrival(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield the calls that a later call of their process overtook."""
    processes: defaultdict[int, list[Answer]] = defaultdict(list)
    for one in sorted(answers, key=lambda one: one.arrival):
        processes[one.process].append(one)
    for process, of_process in processes.items():
        yield from not_rising(f"process {process}, in order of arrival", of_process)


def not_rising(what: str, answers: Sequence[Answer]) -> Iterator[str]:
    """Yield each place where a smaller number follows a greater one."""
    for one, following in pairwise(answers):
        if one.number >= following.number:
            yield f"{what}: {following.number} after {one.number}"


# --------------------------------------------------------------------------------------------------
# Processes with callers, and their reports.

FIRST_KEY, COUNTER = 1000, 30
PATIENT = {"sqlite": {"timeout": 60}}


class Process:
    """One process.

    :ivar answers: in the order in which it reported them.
    :ivar committed: the numbers, in the order of on_commit(); empty if it was killed.
    :ivar inside: the keys of the transaction in which it stays.
    """

    def __init__(self, database: Database, number: int, kind: str) -> None:
        self.kind = kind
        self.answers: list[Answer] = []
        self.committed: list[int] = []
        self.inside: list[int] = []
        url: str | sa.URL = database.url
        if kind == "tasks":
            url = url_for(database, DRIVERS[database.name][0])
        text = sa.make_url(url).render_as_string(hide_password=False)
        arguments = json.dumps({**database.connect_args, **PATIENT.get(database.name, {})})
        self._running = Forked(
            "tests.reliability.combined.callers", text, arguments, str(number), kind
        )

    def wait_until_ready(self) -> None:
        """Return the time when its callers can begin."""
        assert self._running.next_line() == '"ready"'

    def begin(self) -> None:
        """Let its callers call."""
        self._running.tell()

    def read(self) -> bool:
        """Read its next report; return False at the end."""
        line = self._running.output.readline()
        if not line.endswith("\n"):  # it was killed
            return False
        reported = json.loads(line)
        if isinstance(reported, list):
            self.answers.append(Answer(*reported))
        else:
            vars(self).update(reported)
        return True

    def wait_until_ended(self) -> None:
        """Read the rest.  :raises AssertionError: a caller failed."""
        while self.read():
            pass
        assert self._running.end() == 0

    def kill(self) -> None:
        """Send it SIGKILL, and read its remaining reports."""
        self._running.kill()
        while self.read():
            pass
        self.end()

    def end(self) -> None:
        """End it in any case."""
        self._running.close()


@contextmanager
def started(database: Database, *kinds: str) -> Iterator[list[Process]]:
    """Start a process of each kind, all of them ready to begin."""
    processes = [Process(database, number, kind) for number, kind in enumerate(kinds, start=1)]
    try:
        for one in processes:
            one.wait_until_ready()
        yield processes
    finally:
        for one in processes:
            one.end()


def stored(engine: sa.Engine) -> tuple[dict[int, int], range]:
    """Return the saved numbers by key, and the numbers that the counter reached."""
    with engine.connect() as connection:
        rows = connection.execute(
            sa.select(Customer.id, Customer.name).where(Customer.id >= FIRST_KEY)
        )
        numbers = {key: int(name) for key, name in rows}
        counter = connection.scalars(sa.select(Order.total).where(Order.id == 1)).one()
    return numbers, range(COUNTER + 1, counter + 1)


def wrong_in(processes: list[Process], engine: sa.Engine) -> list[str]:
    """Return everything that no order of commits explains."""
    found = [*wrong([one for process in processes for one in process.answers], *stored(engine))]
    for number, process in enumerate(processes, start=1):
        if process.committed != sorted(process.committed):
            found.append(f"process {number}: on_commit() in the order {process.committed}")
        if process.kind == "tasks":  # these wake one after the other
            found += not_rising(f"process {number}, in order of answers", process.answers)
    return found
