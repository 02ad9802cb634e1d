"""Waits in words, and as the tree of ``sa-doclock waits``."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Sequence

import pytest
from rich.console import Console

from sa_doclock import LockConnection, LockWait
from sa_doclock.tools.cli.wait_tree import forest_of, line_of, picture_of, summary_of
from tests.support.rows import rows
from tests.support.tracing import calls_of

ANN, BOB, CAT = (
    LockConnection(
        1, "ann", "till", "idle in transaction", 92.5, "UPDATE  orders\nSET x", host="h"
    ),
    LockConnection(2, "bob"),
    LockConnection(3, "cat", certain=False),
)


def wait(waiter: LockConnection, blocker: LockConnection, root: LockConnection) -> LockWait:
    return LockWait(waiter, blocker, root, "orders", "42", 3.25)


def picture(
    waits: Sequence[LockWait], width: int, height: int, *, everything: bool = False
) -> list[str]:
    out = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    out.print(picture_of(waits, out, everything=everything))
    assert isinstance(out.file, io.StringIO)
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


def shown(*waits: LockWait) -> list[str]:
    """Return the lines of the trees, below the summary."""
    return picture(waits, 500, 24, everything=True)[2:]


def storm(waiters: int, *, of: int = 1) -> list[LockWait]:
    """Make each waiter wait for a holder and for all ahead of it, for this number of holders."""
    found = []
    for root in range(1000, 1000 + of):
        queue = [LockConnection(root, "ann", state="idle in transaction", transaction_seconds=9.0)]
        for number in range(waiters):
            waiter = LockConnection(1000 * root + number, "bob", statement="SELECT 1")
            found += [
                LockWait(waiter, one, queue[0], "orders", str(root), 9.0 - number / 1000)
                for one in queue
            ]
            queue.append(waiter)
    return found


def groups(waiters: int) -> list[LockWait]:
    """Make a hundred sessions wait for a holder, and this number for each of them."""
    root = LockConnection(1000, "ann")
    firsts = [LockConnection(2000 + number, "bob") for number in range(100)]
    found = [LockWait(first, root, root, "orders", "1", 9.0) for first in firsts]
    for first in firsts:
        for number in range(waiters):
            waiter = LockConnection(1000 * first.connection_id + number, "cat")
            found.append(LockWait(waiter, first, root, "stock", "2", 1.0))
    return found


def test_the_root_is_on_top_and_each_waiter_below_its_holder() -> None:
    assert shown(wait(CAT, BOB, ANN), wait(BOB, ANN, ANN)) == [
        f"{ANN}",
        "UPDATE orders SET x",
        "└── orders 42, 3.2 s: connection 2 (user bob)",
        "    └── orders 42, 3.2 s: connection 3 (user cat) (perhaps)",
    ]


def test_who_waits_for_two_stands_below_one_of_them_and_names_the_other() -> None:
    assert shown(wait(CAT, BOB, BOB), wait(CAT, ANN, ANN)) == [
        "connection 2 (user bob)",
        "└── orders 42, 3.2 s: connection 3 (user cat) (perhaps), waits for connection 1 too",
        f"{ANN}",
        "UPDATE orders SET x",
    ]


def test_of_many_holders_one_is_named() -> None:
    holders = [LockConnection(number) for number in range(10, 60)]
    lines = shown(*(wait(BOB, holder, holder) for holder in holders))
    assert lines[:2] == [
        "connection 10",
        "└── orders 42, 3.2 s: connection 2 (user bob), waits for connection 11 and 48 more too",
    ]
    assert lines[2:] == [str(holder) for holder in holders[1:]]


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


def test_who_waits_behind_a_circle_is_below_it() -> None:
    dan = LockConnection(4)
    lines = shown(wait(dan, BOB, BOB), wait(BOB, CAT, CAT), wait(CAT, BOB, BOB))
    assert lines[0] == "connection 2 (user bob)"
    assert sum("connection 4" in line for line in lines) == 1
    assert sum("a circle" in line for line in lines) == 1


def test_a_long_chain_is_not_indented_for_ever() -> None:
    chain = [LockConnection(number) for number in range(100)]
    waits = [wait(one, other, chain[0]) for other, one in itertools.pairwise(chain)]
    lines = picture(waits, 100, 24, everything=True)[2:]
    assert len(lines) == 100
    assert max(map(len, lines)) < 100
    assert lines[-1].endswith("orders 42, 3.2 s, behind connection 98: connection 99")


@pytest.mark.parametrize("width", [40, 80, 120])
@rows("height", [10, 24, 50])
@rows("waits", [storm(200), storm(30, of=10), storm(1, of=200), groups(5)], ids=len)
def test_a_storm_fits_the_screen(width: int, height: int, waits: Sequence[LockWait]) -> None:
    lines = picture(waits, width, height)
    assert height / 2 < len(lines) < height
    assert max(map(len, lines)) <= width
    text = " ".join(lines)
    drawn = len(re.findall(r"connection \d{4,} \(", text))
    counted = [int(number) for number in re.findall(r"and (\d+) more waits? for it", text)]
    for keepers, kept in re.findall(r"and (\d+) more keeps? (\d+) waiting", text):
        counted += [int(keepers), int(kept)]
    if width > 40:  # only here is no number cut off
        connections = {one for wait in waits for one in (wait.waiter, wait.blocker)}
        assert drawn + sum(counted) == len(connections)
    assert lines[-1].startswith("--all shows every connection in")


def test_all_shows_each_connection_once() -> None:
    lines = picture(storm(200), 500, 24, everything=True)
    numbers = re.findall(r"connection (\d+) \(", "\n".join(lines))
    assert sorted(map(int, numbers)) == [1000, *range(1_000_000, 1_000_200)]
    assert "more" not in "".join(lines)


def test_what_fits_is_shown_in_full() -> None:
    lines = picture([wait(BOB, ANN, ANN)], 60, 24)
    assert " ".join(line.strip() for line in lines[lines.index("") + 1 :]) == (
        f"{ANN} UPDATE orders SET x └── orders 42, 3.2 s: connection 2 (user bob)"
    )


def test_a_line_that_is_too_long_is_cut() -> None:
    lines = picture(storm(200), 40, 24)
    assert "├── orders 1000, 9.0 s: connection 10..." in lines


@pytest.mark.parametrize("holders", [1, 20])
def test_the_work_is_the_same_for_each_wait(holders: int) -> None:
    out = Console(file=io.StringIO(), width=80, height=24)
    few, many = storm(10, of=holders), storm(80, of=holders)
    work = [
        calls_of(lambda: out.print(picture_of(waits, out, everything=False)))  # noqa: B023
        for waits in (few, many)
    ]
    assert work[1] - work[0] <= 4 * (len(many) - len(few)), work


@pytest.mark.parametrize(
    ("waits", "reported"),
    [
        (
            storm(200),
            "200 connections wait for orders 1000, held by 1000, idle in transaction, open for 9.0 s",
        ),
        (
            [wait(BOB, ANN, ANN)],
            "1 connection waits for orders 42, held by 1, idle in transaction, open for 92.5 s",
        ),
        (
            [wait(CAT, BOB, BOB), wait(CAT, ANN, ANN)],
            "1 connection waits for orders 42, held by 2 and 1 other",
        ),
        (
            [wait(CAT, BOB, ANN), LockWait(BOB, ANN, ANN, "stock", None, 1.0)],
            (
                "2 connections wait for table stock and 1 other lock, behind 1, idle in transaction, "
                "open for 92.5 s"
            ),
        ),
        (
            storm(3, of=2),
            (
                "6 connections wait for orders 1000 and 1 other lock; 3 of them behind 1000, idle in "
                "transaction, open for 9.0 s"
            ),
        ),
        (
            [wait(BOB, CAT, CAT), wait(CAT, BOB, BOB)],
            "2 connections wait for orders 42, in a circle, which is a deadlock",
        ),
        (
            [wait(BOB, CAT, CAT), wait(CAT, BOB, BOB), *storm(1)],
            (
                "3 connections wait for orders 42 and 1 other lock; 2 of them in a circle, which is a "
                "deadlock"
            ),
        ),
    ],
)
def test_the_summary(waits: Sequence[LockWait], reported: str) -> None:
    assert summary_of(forest_of(waits)) == reported


@pytest.mark.parametrize(
    ("application", "statement", "line"),
    [
        (None, None, None),
        ("billing", "UPDATE orders SET x", None),
        ("billing shop/orders.py:31", None, "shop/orders.py:31"),
        ("db.example:5432", None, None),
        (None, "UPDATE orders SET x /* shop/orders.py:31 */", "shop/orders.py:31"),
        (None, "/*app:shop,line:/srv/shop/orders.py:31*/ UPDATE orders", "/srv/shop/orders.py:31"),
        (None, "UPDATE orders SET x = '/* a.py:1 */' WHERE id = 1", None),
        (None, "SELECT pg_advisory_xact_lock(1) /* sa_doclock key: a.py:1 */", None),
    ],
)
def test_the_line_is_reported_where_the_program_has_given_it(
    application: str | None, statement: str | None, line: str | None
) -> None:
    holder = LockConnection(1, application=application, statement=statement)
    assert line_of(holder) == line
    reported = summary_of(forest_of([wait(BOB, holder, holder)]))
    assert reported.endswith(f"held by 1, line {line}" if line else "held by 1")


@rows(
    ("table", "key", "lock"),
    [
        ("orders", "42", "orders 42"),
        ("orders", "-2024, 7", "orders -2024, 7"),
        ("orders", "a\n\x1b[2J", r"orders 'a\n\x1b[2J'"),
        ("orders", "1, 3.2 s: x", "orders '1, 3.2 s: x'"),
        ("orders", "9" * 100, f"orders {'9' * 77}..."),
        ("or\nders", None, r"table or\nders"),
        ("orders", None, "table orders"),
        (None, "x" * 100, f"named lock '{'x' * 37}...{'x' * 38}'"),
        (None, "user:42", "named lock 'user:42'"),
        (None, None, "a lock"),
    ],
)
def test_a_wait_in_words(table: str | None, key: str | None, lock: str) -> None:
    reported = str(LockWait(BOB, ANN, ANN, table, key, 3.25))
    assert reported == f"{lock}: {BOB} has waited 3.2 s for {ANN}: UPDATE orders SET x"


def test_the_root_is_reported_where_it_is_another() -> None:
    reported = str(LockWait(CAT, BOB, ANN, "orders", None, None))
    assert (
        reported == f"table orders: {CAT} waits for {BOB}; the root is {ANN}: UPDATE orders SET x"
    )
