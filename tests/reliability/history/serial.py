"""Histories that are right by construction: one transaction after the other, however they overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from tests.reliability.history.record import (
    ABSENT,
    FIRST,
    Item,
    Outcome,
    Read,
    Transaction,
    Version,
    Write,
)

DOCUMENTS = (1, 2)
PARTS = ("a", "b", "c")
_APART = 10  # ticks between one transaction's moment and the next one's


class Change(NamedTuple):
    """A change of one detail; an update of a missing one inserts it."""

    part: str
    delete: bool


class Plan(NamedTuple):
    """One transaction.

    :ivar header: it writes the header, even if it inserts and deletes nothing.
    :ivar effective: whether an UNKNOWN one was committed.
    :ivar early: ticks from its beginning to its moment, ``late`` from there to its end.
    """

    documents: Sequence[int]
    changes: Sequence[Change]
    header: bool
    twice: bool
    outcome: Outcome
    effective: bool
    early: int
    late: int

    @property
    def counts(self) -> bool:
        if self.outcome is Outcome.UNKNOWN:
            return self.effective
        return self.outcome is Outcome.COMMITTED


def plans(overlap: int, *, headers: bool) -> st.SearchStrategy[list[Plan]]:
    """Transactions of any kind.

    :param overlap: how many ticks a transaction may begin before its moment, or end after it.
    :param headers: whoever changes details writes the header too.
    """
    one = st.builds(
        Plan,
        documents=st.sampled_from([(1,), (2,), (1, 2)]),
        changes=st.lists(
            st.builds(Change, st.sampled_from(PARTS), st.booleans()),
            max_size=2,
            unique_by=lambda change: change.part,
        ),
        header=st.just(True) if headers else st.booleans(),
        twice=st.booleans(),
        outcome=st.sampled_from([*[Outcome.COMMITTED] * 4, Outcome.ABORTED, Outcome.UNKNOWN]),
        effective=st.booleans(),
        early=st.integers(0, overlap),
        late=st.integers(1, 1 + overlap),
    )
    return st.lists(one, min_size=2, max_size=14)


State = dict[Item, Version]
"""The version of each item."""


def carried_out(
    plans: Sequence[Plan], first: Mapping[Item, Version]
) -> tuple[list[Transaction], State]:
    """Return what the transactions have seen and done, and the final state."""
    state: State = dict(first)
    done = []
    for number, plan in enumerate(plans, start=1):
        moment = number * _APART
        one = Transaction(number, moment - plan.early, moment + plan.late, plan.outcome)
        one.committing = moment
        after = _carry_out(one, plan, state)
        if plan.counts:
            state = after
        done.append(one)
    return done, state


def first_state(parts: Sequence[str] = PARTS[:2]) -> State:
    """Both headers, and these of their details."""
    return {Item(number, part): FIRST for number in DOCUMENTS for part in ("", *parts)}


def _carry_out(one: Transaction, plan: Plan, before: State) -> State:
    state = dict(before)
    for _ in range(1 + plan.twice):
        for document in plan.documents:
            for part in ("", *PARTS):
                item = Item(document, part)
                one.operations.append(Read(item, state.get(item, ABSENT)))
    for nth in range(1, 2 + plan.twice if plan.changes else 1):
        for document in plan.documents[:1]:
            if plan.header:
                _write(one, state, Item(document), nth, delete=False)
            for change in plan.changes:
                delete = change.delete and nth == 1 + plan.twice
                _write(one, state, Item(document, change.part), nth, delete=delete)
    return state


def _write(one: Transaction, state: State, item: Item, nth: int, *, delete: bool) -> None:
    version, over = Version(one.number, nth), state.get(item, ABSENT)
    if not delete:
        state[item] = version
    elif state.pop(item, None) is None:
        return
    one.operations.append(Write(item, version, over, gone=delete))
