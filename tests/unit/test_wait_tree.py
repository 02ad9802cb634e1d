"""Waits in words, and as the tree of ``sa-doclock waits``."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sa_doclock import LockConnection, LockWait
from sa_doclock.cli.wait_tree import tree_of

ANN, BOB, CAT = (
    LockConnection(
        1, "ann", "till", "idle in transaction", 92.5, "UPDATE  orders\nSET x", host="h"
    ),
    LockConnection(2, "bob"),
    LockConnection(3, "cat", certain=False),
)


def wait(waiter: LockConnection, blocker: LockConnection, root: LockConnection) -> LockWait:
    return LockWait(waiter, blocker, root, "orders", "42", 3.25)


def shown(*waits: LockWait) -> list[str]:
    out = Console(file=io.StringIO(), width=500, color_system=None)
    out.print(tree_of(waits))
    assert isinstance(out.file, io.StringIO)
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


def test_the_root_is_on_top_and_each_waiter_below_its_holder() -> None:
    assert shown(wait(CAT, BOB, ANN), wait(BOB, ANN, ANN)) == [
        f"{ANN}",
        "UPDATE orders SET x",
        "└── orders 42, 3.2 s: connection 2 (user bob)",
        "    └── orders 42, 3.2 s: connection 3 (user cat) (perhaps)",
    ]


def test_who_waits_for_two_is_below_both() -> None:
    lines = shown(wait(CAT, BOB, BOB), wait(CAT, ANN, ANN))
    assert [line for line in lines if "user cat" in line] == 2 * [
        "└── orders 42, 3.2 s: connection 3 (user cat) (perhaps)"
    ]


def test_a_circle_is_called_one_and_comes_to_an_end() -> None:
    assert shown(wait(BOB, CAT, CAT), wait(CAT, BOB, BOB)) == [
        "connection 3 (user cat) (perhaps)",
        "└── orders 42, 3.2 s: connection 2 (user bob)",
        "    └── orders 42: connection 3 again, a circle",
    ]


def test_a_circle_beside_a_tree_is_not_left_out() -> None:
    lines = shown(
        wait(BOB, ANN, ANN), wait(CAT, LockConnection(4), CAT), wait(LockConnection(4), CAT, CAT)
    )
    assert sum("a circle" in line for line in lines) == 1
    assert sum("ann" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("table", "key", "lock"),
    [
        ("orders", "42", "orders 42"),
        ("orders", None, "table orders"),
        (None, "user:42", "named lock 'user:42'"),
        (None, None, "a lock"),
    ],
)
def test_a_wait_in_words(table: str | None, key: str | None, lock: str) -> None:
    told = str(LockWait(BOB, ANN, ANN, table, key, 3.25))
    assert told == f"{lock}: {BOB} has waited 3.2 s for {ANN}: UPDATE orders SET x"


def test_the_root_is_told_where_it_is_another() -> None:
    told = str(LockWait(CAT, BOB, ANN, "orders", None, None))
    assert told == f"table orders: {CAT} waits for {BOB}; the root is {ANN}: UPDATE orders SET x"
