"""The checker accuses no history that was right, and finds whatever is made wrong in one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from tests.reliability.history.checker import check
from tests.reliability.history.corrupted import (
    Corrupted,
    with_a_base_twice,
    with_a_write_dropped,
    with_another_read,
)
from tests.reliability.history.graph import graph_of
from tests.reliability.history.record import History, Outcome, Transaction
from tests.reliability.history.serial import Plan, carried_out, first_state, plans

OVERLAP = 35  # ticks: so that up to eight are open at the same time


def _always(examples: int) -> settings:
    return settings(
        derandomize=True,
        deadline=None,
        database=None,
        max_examples=examples,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.slow
@_always(150)
@given(planned=plans(OVERLAP, headers=False), final=st.booleans())
def test_a_serial_history_has_no_anomaly(planned: list[Plan], final: bool) -> None:
    done, left = carried_out(planned, first_state())
    assert list(map(str, check(History(done, left if final else None)))) == []


@pytest.mark.slow
@pytest.mark.parametrize("corrupt", [with_another_read, with_a_write_dropped, with_a_base_twice])
@_always(100)
@given(planned=plans(0, headers=True), data=st.data())
def test_what_is_made_wrong_is_found(
    corrupt: Callable[[Sequence[Transaction]], Iterator[Corrupted]],
    planned: list[Plan],
    data: st.DataObject,
) -> None:
    done, left = carried_out(planned, first_state())
    wrong = list(corrupt(done))
    assume(wrong)
    what, history = data.draw(st.sampled_from(wrong))
    note(what)
    assert check(History(history, left)) != []


def test_the_graph_grows_with_the_number_of_transactions_alone() -> None:
    plan = Plan((1,), (), True, False, Outcome.COMMITTED, True, OVERLAP, OVERLAP)
    edges = [
        graph_of(History(carried_out([plan] * many, first_state())[0])).number_of_edges()
        for many in (200, 400)
    ]
    assert edges[1] <= 2 * edges[0] + 10
