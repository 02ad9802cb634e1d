"""The order of answers is that of the commits, and in each process that of arrival."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from tests.reliability.combined.answers import Answer, wrong
from tests.reliability.combined.callers import CALLERS, CALLS, Threads
from tests.reliability.combined.processes import started, stored, wrong_in
from tests.support.databases import Database


def test_of_two_gates(engine: sa.Engine) -> None:
    answers: list[Answer] = []
    both = [Threads(number, answers.append, engine) for number in (1, 2)]
    with ThreadPoolExecutor(2) as threads:
        for one in [threads.submit(each.run, number=4, calls=5) for each in both]:
            one.result()
    assert len(answers) == 2 * 4 * 5
    assert not [*wrong(answers, *stored(engine))]
    for each in both:
        assert each.committed == sorted(each.committed)


@pytest.mark.slow
def test_of_processes(documents: Database, engine: sa.Engine) -> None:
    with started(documents, "threads", "threads", "tasks") as processes:
        for one in processes:
            one.begin()
        for one in processes:
            one.wait_until_ended()
    for one in processes:
        assert len(one.answers) == len(one.committed) == CALLERS * CALLS
    assert not wrong_in(processes, engine)
