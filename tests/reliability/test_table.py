"""Rows add up, and the lengths of tests come from one place."""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.reliability import Reliability, Soak
from tests.reliability.record import load, long_table, save, short_table


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


def test_what_was_recorded_is_replaced_by_a_later_run(tmp_path: Path) -> None:
    path = tmp_path / "soaked.json"
    save(some_rows(), path)
    later = Reliability()
    later.row("backends terminated", "mysql").injected = 5
    later.fuzzed("options", 6)
    save(later, path)
    assert [(row.database, row.injected) for row in load(path).rows()] == [
        ("mysql", 5),
        ("postgresql", 1000),
    ]
    assert load(path).inputs == {"options": 6}


def test_the_run_on_the_pages_was_a_long_one_and_nothing_was_lost() -> None:
    """make soak ARGS='--soak-record tests/reliability/soaked.json'"""
    rows, inputs = load().rows(), load().inputs
    assert {row.database for row in rows} >= {"postgresql", "mysql", "mariadb", "sqlite"}
    assert [row for row in rows if row.lost or row.inconsistent] == []
    assert sum(row.injected for row in rows) > 3_000
    assert sum(row.acknowledged for row in rows) > 10_000
    assert sum(inputs.values()) > 30_000
