"""The checker accepts every correct history, and finds any error introduced into one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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

# --------------------------------------------------------------------------------------------------
# Histories correct by construction: one transaction after another, however they overlap.

DOCUMENTS = (1, 2)
PARTS = ("a", "b", "c")
_APART = 10  # ticks between the moments of consecutive transactions


class Change(NamedTuple):
    """A change of one detail; an update of a missing detail inserts it."""

    part: str
    delete: bool


class Plan(NamedTuple):
    """One transaction.

    :ivar header: it writes the header, even if it inserts and deletes nothing.
    :ivar effective: whether an UNKNOWN transaction was committed.
    :ivar early: ticks from its beginning to its moment; ``late`` counts from there to its end.
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
    """Draw transactions of any kind.

    :param overlap: how many ticks a transaction may begin before its moment, or end after it.
    :param headers: each transaction that changes details writes the header too.
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
    """Return the reads and writes of the transactions, and the final state."""
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
    """Return both headers, and these of their details."""
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


# --------------------------------------------------------------------------------------------------
# A correct history with one error in it.

Corrupted = tuple[str, list[Transaction]]


def with_another_read(transactions: Sequence[Transaction]) -> Iterator[Corrupted]:
    """Make one read return another version of its item: older, newer, or deleted."""
    for number, one in _committed(transactions):
        for place, read in enumerate(one.operations):
            if isinstance(read, Read):
                for version in _versions(transactions, read):
                    changed = Read(read.item, version)
                    yield f"{one}: {changed}", _with(transactions, number, place, changed)


def with_a_write_dropped(transactions: Sequence[Transaction]) -> Iterator[Corrupted]:
    """Undo one transaction's write of an item that others saw."""
    for number, one in _committed(transactions):
        for item, write in one.installed().items():
            if write.gone and write.over == ABSENT:
                continue  # no transaction saw it come and go
            operations = [
                each for each in one.operations if isinstance(each, Read) or each.item != item
            ]
            yield f"{one}: no {item}", _exchanged(transactions, number, operations)


def with_a_base_twice(transactions: Sequence[Transaction]) -> Iterator[Corrupted]:
    """Make one transaction replace a version that another already replaced."""
    bases = {
        (write.item, write.version): write.over
        for _, one in _committed(transactions)
        for write in one.installed().values()
    }
    for number, one in _committed(transactions):
        for place, write in enumerate(one.operations):
            if isinstance(write, Write) and write.over is not None:
                base = bases.get((write.item, write.over))
                if base is not None and write.over.writer != one.number:
                    changed = write._replace(over=base)
                    yield f"{one}: {changed}", _with(transactions, number, place, changed)


def _committed(transactions: Sequence[Transaction]) -> Iterator[tuple[int, Transaction]]:
    for number, one in enumerate(transactions):
        if one.outcome is Outcome.COMMITTED:
            yield number, one


def _versions(transactions: Sequence[Transaction], read: Read) -> Iterator[Version]:
    """Return the other versions that a reader may get."""
    known = {FIRST, ABSENT} if read.item.part else {FIRST}
    for one in transactions:
        known |= {w.version for w in one.writes if w.item == read.item and not w.gone}
    yield from sorted(known - {read.version})


def _with(
    transactions: Sequence[Transaction], number: int, place: int, operation: Read | Write
) -> list[Transaction]:
    operations = list(transactions[number].operations)
    operations[place] = operation
    return _exchanged(transactions, number, operations)


def _exchanged(
    transactions: Sequence[Transaction], number: int, operations: list[Read | Write]
) -> list[Transaction]:
    changed = list(transactions)
    changed[number] = replace(changed[number], operations=operations)
    return changed
