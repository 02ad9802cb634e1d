"""A check of the answers of gate.run(): one order of commits has to explain them.

Each function raises the counter of one document and returns it.  So the counter numbers the functions
in the order of their commits, and the numbers can be compared with the times of the callers: those of
several processes too, because Linux has one monotonic clock for all.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple


class Answer(NamedTuple):
    """One call that was answered.

    :ivar key: of the row that its function has inserted, with the number in it.
    :ivar arrival: its place among the calls of its process.
    :ivar invoked: when it was called, and ``answered``: when it had its answer.
    """

    process: int
    key: int
    arrival: int
    invoked: float
    answered: float
    number: int


def wrong(answers: Sequence[Answer], stored: Mapping[int, int], counted: range) -> Iterator[str]:
    """Yield what no order of commits explains.

    :param stored: the numbers in the rows, by their keys.
    :param counted: the numbers that the counter has given in the end.
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
    """Yield the calls that began when a call with a greater number had its answer."""
    earliest = math.inf  # of the answers with a greater number
    for one in sorted(answers, key=lambda one: one.number, reverse=True):
        if earliest < one.invoked:
            yield f"{one.number} was called after a greater number was answered"
        earliest = min(earliest, one.answered)


def _against_the_arrival(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield the calls that a later one of their process has overtaken."""
    processes: defaultdict[int, list[Answer]] = defaultdict(list)
    for one in sorted(answers, key=lambda one: one.arrival):
        processes[one.process].append(one)
    for process, of_process in processes.items():
        yield from not_rising(f"process {process}, in order of arrival", of_process)


def not_rising(what: str, answers: Sequence[Answer]) -> Iterator[str]:
    """Yield where a smaller number comes after a greater one."""
    for one, following in pairwise(answers):
        if one.number >= following.number:
            yield f"{what}: {following.number} after {one.number}"
