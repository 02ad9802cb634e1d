"""Orders of locks over many transactions: cycles of rows are certain, those of classes possible."""

from __future__ import annotations

import json

import pytest

from doclock_audit import lock_order
from doclock_audit.lock_order import LockOrder
from doclock_audit.places import Place
from doclock_audit.rows import Row
from doclock_audit.transactions import RowLock, Transaction
from tests.support.rows import rows


def run(rule: LockOrder, *rows: str) -> None:
    """Lock rows such as ``A1`` in one transaction, each on a line of its own."""
    transaction = Transaction()
    for line, name in enumerate(rows, 1):
        row = Row(f"shop.{name[0]}", (int(name[1:]),))
        lock = RowLock(Place("shop.py", line), line)
        rule.locked(transaction, row, lock)
        transaction.locks[row] = lock


def found(*transactions: str) -> list[tuple[bool, str]]:
    rule, merged = LockOrder(), LockOrder()
    for statements in transactions:
        run(rule, *statements.split())
    merged.merge(json.loads(json.dumps(rule.export())))
    assert list(merged.findings()) == list(rule.findings())
    return [(one.certain, one.message.partition(": ")[2]) for one in rule.findings()]


@rows(
    ("transactions", "certain"),
    [
        (("A1 A2", "A2 A1"), [True]),
        (("A1 B1", "B1 A1"), [True]),
        (("A1 B1", "B1 C1", "C1 A1"), [True]),
        (("A1 B1", "B2 A2"), [False]),
        (("A1 B1", "B2 C2", "C3 A3"), [False]),
        (("A1 A2", "A4 A3"), [False]),
        (("A1 A2", "A1 A2 A3", "A2 A3"), []),
        (("A1 B1", "A2 B1", "B1 C1", "A1 C1"), []),
        (("G1 A1 A2", "G1 A2 A1"), []),
        (("G1 A1 A2", "G2 A2 A1"), [True]),
        ((" ".join(f"A{n}" for n in range(1, 20)), "A19 A18"), [True]),
    ],
)
def test_the_orders_of_a_run(transactions: tuple[str, ...], certain: list[bool]) -> None:
    assert [one for one, _ in found(*transactions)] == certain


def test_each_place_of_a_cycle_is_named() -> None:
    ((_, message),) = found("A1 B1", "B1 A1")
    assert (
        message == "A at shop.py:1 and then B at shop.py:2; B at shop.py:1 and then A at shop.py:2"
    )


def test_an_order_that_is_the_oldest_and_is_seen_again_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lock_order, "_MOST_PAIRS", 2)
    rule = LockOrder()
    for rows_locked in ("A1 A2", "A3 A1", "A1 A3"):
        run(rule, *rows_locked.split())
    assert rule.left_out == 2
    assert [one.certain for one in rule.findings()] == [False]
