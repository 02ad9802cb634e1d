"""Of the waits that a server lists, the library keeps a few for each waiter, and each leads to its root."""

from __future__ import annotations

import copy
import pickle
import random
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from sa_doclock import LockConnection, LockNotAvailable, lock_waits
from sa_doclock.dialects import named_locks
from sa_doclock.dialects.innodb import lock_data
from sa_doclock.features.diagnosis import blockers_text
from sa_doclock.tools.monitoring import Wait, WaitGraph
from tests.support.rows import rows
from tests.support.tracing import calls_of

Pairs = list[tuple[int, int]]


def waits_of(pairs: Iterable[tuple[int, int]]) -> list[Wait]:
    return [Wait(waiter, blocker, "orders", "42", float(waiter)) for waiter, blocker in pairs]


def kept(pairs: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Return the root of each kept pair."""
    found = WaitGraph(waits_of(pairs)).waits()
    return {(wait.waiter, wait.blocker): root for wait, root in found}


def queue(waiters: int) -> Pairs:
    """Make all wait for 0 and for those ahead of them, as InnoDB lists a queue."""
    return [(waiter, other) for waiter in range(1, waiters + 1) for other in range(waiter)]


def queue_behind_first(waiters: int) -> Pairs:
    """Make 1 wait for 0, and the others for those ahead of them, as PostgreSQL lists a queue."""
    return [pair for pair in queue(waiters) if pair[1] or pair[0] == 1]


def readers_and_writers(waiters: int) -> Pairs:
    """Make every second session a reader, which never waits for another reader."""
    return [pair for pair in queue(waiters) if pair[0] % 2 == 0 or pair[1] % 2 == 0]


def many_holders(waiters: int) -> Pairs:
    """Make readers hold the lock that as many writers wait for."""
    holders = [
        (waiter, -holder) for waiter in range(1, waiters + 1) for holder in range(1, waiters)
    ]
    return holders + [pair for pair in queue(waiters) if pair[1]]


def queue_in_circle(waiters: int) -> Pairs:
    """Make the holder wait for the last session of its queue: a deadlock, with many waiting behind it."""
    return [*queue(waiters), (0, waiters)]


QUEUES = [queue, queue_behind_first, readers_and_writers, many_holders, queue_in_circle]


def test_of_a_queue_the_holder_and_the_last_one_in_front_stay() -> None:
    assert kept(queue(4)) == dict.fromkeys(
        [(1, 0), (2, 0), (2, 1), (3, 0), (3, 2), (4, 0), (4, 3)], 0
    )


def test_where_the_first_waiter_is_in_front_of_the_others_they_stay_behind_it() -> None:
    assert kept(queue_behind_first(4)) == dict.fromkeys(
        [(1, 0), (2, 1), (3, 1), (3, 2), (4, 1), (4, 3)], 0
    )


def test_of_several_holders_the_first_waiter_has_all() -> None:
    found = kept([(1, -1), (1, -2), (2, -1), (2, -2), (2, 1), (3, -1), (3, -2), (3, 1), (3, 2)])
    assert found.keys() == {(1, -1), (1, -2), (2, 1), (3, 1), (3, 2)}
    assert (found[1, -1], found[1, -2]) == (-1, -2)


def test_who_waits_for_holders_of_two_locks_keeps_both() -> None:
    # 3 holds a lock that 2 wants, and waits for 1, who holds no lock that 2 wants.
    assert kept([(2, 4), (2, 3), (3, 1)]) == {(2, 4): 4, (2, 3): 1, (3, 1): 1}


def test_two_groups_with_the_same_holders_are_not_mixed() -> None:
    pairs = [(waiter, holder) for waiter in (1, 2) for holder in (8, 9)]
    assert kept(pairs).keys() == set(pairs)  # because one of them does not wait for the other


def test_different_requests_of_a_connection_stay_apart() -> None:
    found = WaitGraph([Wait(1, 2, "a", "1", 3.0), Wait(1, 3, "b", None, None)]).waits()
    assert sorted(wait for wait, _ in found) == [(1, 2, "a", "1", 3.0), (1, 3, "b", None, None)]


@pytest.mark.parametrize(
    ("pairs", "root"),
    [
        ([(1, 2)], 2),
        ([(1, 2), (2, 3)], 3),
        ([(1, 2), (2, 3), (2, 4), (3, 4)], 4),
        ([(1, 2), (2, 2), (2, 3)], 3),
        ([(1, 2), (2, 1)], 2),  # a circle has no root
        ([(1, 2), (2, 3), (3, 2)], 2),
    ],
)
def test_the_root_is_who_does_not_wait(pairs: Pairs, root: int) -> None:
    assert kept(pairs)[pairs[0]] == root


@pytest.mark.parametrize("pairs_of", QUEUES)
def test_there_are_a_few_for_each_connection(pairs_of: Callable[[int], Pairs]) -> None:
    for waiters in (20, 200):
        pairs = pairs_of(waiters)
        found = kept(pairs)
        assert {waiter for waiter, _ in found} == {waiter for waiter, _ in pairs}
        connections = {one for pair in pairs for one in pair}
        assert len(found) <= 2 * len(connections)


@pytest.mark.parametrize("pairs_of", QUEUES)
def test_the_work_is_the_same_for_each_pair(pairs_of: Callable[[int], Pairs]) -> None:
    few, many = (waits_of(pairs_of(waiters)) for waiters in (20, 120))
    assert len(many) > 30 * len(few)
    work = [calls_of(lambda: list(WaitGraph(waits).waits())) / len(waits) for waits in (few, many)]  # noqa: B023
    assert work[1] <= work[0] <= 12, work


def roots_of(connection: int, pairs: Iterable[tuple[int, int]]) -> set[int]:
    blockers: dict[int, set[int]] = {}
    for waiter, blocker in pairs:
        blockers.setdefault(waiter, set()).add(blocker)
    reached, front = {connection}, {connection}
    while front:
        front = {one for waiter in front for one in blockers.get(waiter, ())} - reached
        reached |= front
    return {one for one in reached if one not in blockers}


@rows("seed", range(200))
def test_any_graph(seed: int) -> None:
    numbers = random.Random(seed)
    many = numbers.randint(2, 12)
    pairs = {
        (numbers.randrange(many), numbers.randrange(many)) for _ in range(numbers.randint(1, 40))
    }
    found = kept(sorted(pairs, key=lambda _: numbers.random()))
    assert found.keys() <= pairs
    for waiter in {waiter for waiter, _ in pairs}:
        mine = {pair: root for pair, root in found.items() if pair[0] == waiter}
        assert mine
        every_root = roots_of(waiter, pairs)
        assert bool(roots_of(waiter, found)) is bool(every_root)  # a path to a root remains
        for (_, blocker), root in mine.items():
            assert root in (roots_of(blocker, pairs) or {blocker})


# --------------------------------------------------------------------------------------------------
# Errors name the holders of the row.

WHOLE = LockConnection(
    4711, "app", "billing", "idle in transaction", 12.34, "UPDATE  orders\nSET x"
)


@pytest.mark.parametrize(
    ("party", "text"),
    [
        (
            WHOLE,
            (
                "connection 4711 (user app, application 'billing', idle in transaction, its "
                "transaction open for 12.3 s): UPDATE orders SET x"
            ),
        ),
        (LockConnection(7), "connection 7"),
        (LockConnection(7, host="10.0.0.9"), "connection 7 (host 10.0.0.9)"),
        (LockConnection(7, user="app"), "connection 7 (user app)"),
        (LockConnection(7, state="active"), "connection 7 (active)"),
        (
            LockConnection(7, transaction_seconds=0.0),
            "connection 7 (its transaction open for 0.0 s)",
        ),
        (LockConnection(7, statement="SELECT 1"), "connection 7: SELECT 1"),
        (LockConnection(0, state="prepared transaction"), "connection 0 (prepared transaction)"),
    ],
)
def test_what_is_known_is_said(party: LockConnection, text: str) -> None:
    assert blockers_text([party], hide=False) == f"held by {text}"


def test_a_guess_is_called_one() -> None:
    assert (
        blockers_text([LockConnection(7, certain=False)], hide=False)
        == "perhaps held by connection 7"
    )


def test_a_long_statement_is_cut_and_its_length_said() -> None:
    text = blockers_text([LockConnection(7, statement="SELECT " + "x" * 493)], hide=False)
    assert text == f"held by connection 7: SELECT {'x' * 193}... (500 characters)"


def test_a_statement_is_left_out_where_the_engine_hides_parameters() -> None:
    assert (
        blockers_text([LockConnection(7, statement="SELECT 'secret'")], hide=True)
        == "held by connection 7"
    )


def test_what_a_server_tells_begins_no_line_and_sends_no_escape_code() -> None:
    text = blockers_text(
        [LockConnection(7, "a\nb", "c\x1b[2J", statement="SELECT '\x1b[31m'")], hide=False
    )
    assert text == (r"held by connection 7 (user a\nb, application 'c\x1b[2J'): SELECT '\x1b[31m'")


def test_of_many_three_are_said() -> None:
    parties = [LockConnection(number) for number in range(1, 6)]
    assert (
        blockers_text(parties, hide=False)
        == "held by connection 1; connection 2; connection 3; 2 more"
    )
    assert blockers_text(parties[:3], hide=False).endswith("connection 3")


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))]
)
def test_a_copy_of_the_error_tells_the_same(copied: Callable[[Any], Any]) -> None:
    error = LockNotAvailable("text")
    assert error.blockers == ()
    error.blockers = (WHOLE,)
    assert copied(error).blockers == (WHOLE,)


def test_a_party_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        WHOLE.user = "other"  # type: ignore[misc]


@pytest.mark.parametrize("bind", [None, "sqlite://", 1])
def test_only_engines_and_connections_can_be_asked(bind: Any) -> None:
    with pytest.raises(TypeError, match="needs an Engine or a Connection, not "):
        lock_waits(bind)


UUID = uuid.UUID(int=255)


@pytest.mark.parametrize(
    ("types", "key", "text"),
    [
        ([sa.Integer], (-3,), "-3"),
        ([sa.BigInteger], ("42",), "42"),
        ([sa.String], ("a'b",), "'a''b'"),
        ([sa.Integer, sa.String], (2024, "x"), "2024, 'x'"),
        ([sa.Uuid], (UUID,), f"'{UUID.hex}'"),
        ([sa.LargeBinary], (b"ab",), None),
        ([sa.Numeric], (1.5,), None),
    ],
)
def test_a_key_is_spelled_as_innodb_does(
    types: list[Any], key: tuple[Any, ...], text: str | None
) -> None:
    columns = [sa.Column(f"c{n}", kind, primary_key=True) for n, kind in enumerate(types)]
    table = sa.Table("t", sa.MetaData(), *columns)
    found = lock_data(mysql.dialect(), table, [key])
    assert found == ([] if text is None else [text])


# --------------------------------------------------------------------------------------------------
# The keys that a process remembers for lock_waits(): the most recent ones only.


def test_the_last_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_locks, "_KEPT", 2)
    monkeypatch.setattr(named_locks, "_keys", {})
    for key in ("a", "b", "a", "c"):
        named_locks.remember_key(key, f"shop.{key}")
    assert named_locks.recent_keys() == {"shop.b": "b", "shop.c": "c"}


def test_they_take_little_memory_however_long_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_locks, "_keys", {})
    for number in range(3_000):
        for long in (f"{number:0255}", f"{number:0256}", f"{number:010000}"):
            named_locks.remember_key(long, f"{number}.{len(long)}")
    kept = named_locks.recent_keys()
    assert len(kept) == 1_000
    assert sum(map(len, kept.values())) <= 255_000
    assert f"{2_999:0255}" in kept.values()
