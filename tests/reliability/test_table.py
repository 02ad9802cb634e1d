"""Rows add up, and the lengths of tests come from one place."""

from __future__ import annotations

import itertools

from tests.reliability import Reliability, Soak
from tests.reliability.table import long_table, short_table


def some_rows() -> Reliability:
    reliability = Reliability()
    for database, injected in (("postgresql", 1000), ("mysql", 7)):
        row = reliability.row("backends terminated", database)
        row.injected += injected
        row.acknowledged += 2 * injected
        row.reached_a_client(ValueError())
    reliability.row("backends terminated", "mysql").injected += 1
    return reliability


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_short_table_adds_up_the_databases_of_a_fault() -> None:
    assert cells(short_table(some_rows().rows()))[2:] == [
        ["backends terminated", "postgresql, mysql", "1,008", "2,014", "0", "0"]
    ]


def test_the_long_table_has_every_database_with_its_errors() -> None:
    assert cells(long_table(some_rows().rows()))[2:] == [
        ["backends terminated", "postgresql", "1,000", "2,000", "0", "0", "1 ValueError"],
        ["backends terminated", "mysql", "8", "14", "0", "0", "1 ValueError"],
    ]


def test_a_loss_is_in_the_table() -> None:
    rows = some_rows()
    row = rows.row("backends terminated", "mysql")
    row.lost, row.inconsistent = 3, 4
    assert cells(short_table(rows.rows()))[2][-2:] == ["3", "4"]


def test_the_short_form_counts_rounds_and_no_seconds() -> None:
    assert list(Soak().rounds(short=3)) == [0, 1, 2]
    assert Soak().times(short=3, long=9) == 3


def test_the_long_form_goes_on_past_the_short_one() -> None:
    assert list(itertools.islice(Soak(seconds=3600).rounds(short=3), 5)) == [0, 1, 2, 3, 4]
    assert Soak(seconds=1).times(short=3, long=9) == 9


def test_the_long_form_ends_with_its_seconds() -> None:
    assert list(Soak(seconds=1e-9).rounds(short=3)) == [0, 1, 2]
