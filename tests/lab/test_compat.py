"""The list of differences is short and has reasons; ids of tests are compared without a database."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from lab.compat import __main__ as compat
from lab.compat.differences import DIFFERENCES

SUITE = compat.SUITES["sqlalchemy-2.1"]
LISTED = next(iter(DIFFERENCES))


def test_there_are_at_most_ten_each_with_a_reason() -> None:
    assert len(DIFFERENCES) <= 10
    assert all(DIFFERENCES.values())
    assert list(DIFFERENCES) == [compat.name_of(node) for node in DIFFERENCES]


@pytest.mark.parametrize(
    "node",
    [
        "test/orm/test_x.py::XTest_sqlite+pysqlite_3_40_1::test_y[a-b]",
        "test/orm/test_x.py::XTest_postgresql+psycopg_18_4::test_y",
        "test/orm/test_x.py::XTest::test_y[sqlite]",
    ],
)
def test_an_id_is_that_of_every_database(node: str) -> None:
    assert compat.name_of(node) == "test/orm/test_x.py::XTest::test_y"


def fake(
    monkeypatch: pytest.MonkeyPatch,
    ours: list[str],
    stock: list[str],
    ours_again: list[str] | None = None,
    *,
    collected: bool = True,
    passed: Sequence[str] = ("test/a.py::old",),
) -> None:
    """Replace the runs.

    :param ours_again: what fails on our sessions in the second run; None for the same.
    :param collected: False where pytest finds no test in a second run.
    """

    def run(
        _suite: Any, package: str, tests: Any, _workers: int, *, again: bool = False
    ) -> compat.Results:
        if not again:
            return compat.Results(frozenset(ours), frozenset(passed))
        if not collected:
            return compat.Results()
        fails = stock if not package else ours if ours_again is None else ours_again
        failed = frozenset(fails).intersection(tests)
        return compat.Results(failed, frozenset(tests) - failed)

    monkeypatch.setattr(compat, "run", run)


def test_what_fails_on_ours_alone_and_is_not_listed_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake(monkeypatch, [*DIFFERENCES, "test/a.py::new", "test/a.py::broken"], ["test/a.py::broken"])
    assert compat.check("x", SUITE, (), 1) == [
        "x: fails on our sessions alone: test/a.py::new",
    ]


def test_what_fails_once_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, [*DIFFERENCES, "test/a.py::new"], [], ours_again=[])
    assert compat.check("x", SUITE, (), 1) == []


def test_what_is_listed_and_passes_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(monkeypatch, [*DIFFERENCES][2:], [], passed=[LISTED])
    assert compat.check("x", SUITE, (), 1) == []
    reported = re.findall("listed as a difference, and has passed: (.*)", capsys.readouterr().out)
    assert reported == [LISTED]  # and not the second one, which has not run


def test_a_run_in_which_nothing_passes_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "run", lambda *_: compat.Results(frozenset(DIFFERENCES)))
    assert compat.check("x", SUITE, (), 1) == ["x: no test has passed"]


def test_a_test_that_is_not_run_again_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, ["test/a.py::new"], [], collected=False)
    assert compat.check("x", SUITE, (), 1) == ["x: was not run again: test/a.py::new"]


def test_a_module_that_cannot_be_imported_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, ["test/a.py"], ["test/a.py"])
    assert compat.check("x", SUITE, (), 1) == ["x: cannot be imported: test/a.py"]
