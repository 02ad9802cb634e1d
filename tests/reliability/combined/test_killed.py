"""A process is killed in the midst of a combined commit, while those of other processes wait."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.reliability.combined.callers import CALLERS, CALLS
from tests.reliability.combined.processes import started, stored, wrong_in
from tests.support.databases import Database
from tests.support.waits import poll_seconds_of, wait_until, waits_at


@pytest.mark.slow
def test_nothing_of_its_transaction_is_saved_and_the_others_go_on(
    documents: Database, engine: sa.Engine
) -> None:
    with started(documents, "victim", "threads", "tasks") as processes:
        victim, *others = processes
        victim.begin()
        while not victim.inside:
            assert victim.read()
        for one in others:
            one.begin()
        if documents.name != "sqlite":  # which has no server to ask
            wait_until(
                lambda: len({waiter for waiter, _ in waits_at(documents)}) >= len(others),
                poll_seconds=poll_seconds_of(documents),
            )
        victim.kill()
        for one in others:
            one.wait_until_ended()
    assert len(victim.answers) >= 5
    assert len(victim.inside) == 3
    assert not stored(engine)[0].keys() & {*victim.inside}
    for one in others:
        assert len(one.answers) == CALLERS * CALLS
    assert not wrong_in(processes, engine)
