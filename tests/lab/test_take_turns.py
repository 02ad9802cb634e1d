"""Each test is on one database, with each of its other parameters; each database has its turn."""

from __future__ import annotations

from collections import Counter

import pytest

TESTS = """
    import pytest

    every = pytest.mark.parametrize("database", ["mysql", "postgresql", "sqlite", "sqlite-journal"])

    @every
    @pytest.mark.parametrize("number", range(30))
    def test_of_two(database, number): ...

    @every
    def test_of_one(database): ...

    @pytest.mark.parametrize("database", ["sqlite-journal"])
    def test_of_the_journal(database): ...

    @pytest.mark.parametrize("served", ["mssql", "mysql-5.7"])
    def test_without_server(served): ...

    @pytest.mark.parametrize("number", range(3))
    def test_without(number): ...
"""


def test_it_is_on_one_and_they_take_turns(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.inline_run("-p", "lab.running.take_turns", "-p", "no:randomly")
    reports = result.getreports("pytest_runtest_logreport")
    names = [report.nodeid.partition("::")[2] for report in reports if report.when == "call"]
    of_two = [name[12:-1].split("-", 1) for name in names if name.startswith("test_of_two")]
    assert sorted(int(number) for number, _ in of_two) == [*range(30)]
    counted = Counter(database for _, database in of_two)
    assert counted == {"mysql": 10, "postgresql": 10, "sqlite": 10}
    assert sum(name.startswith("test_of_one[") for name in names) == 1
    assert [name for name in names if "journal" in name] == ["test_of_the_journal[sqlite-journal]"]
    assert sum(name.startswith("test_without_server[") for name in names) == 1
    assert sum(name.startswith("test_without[") for name in names) == 3
