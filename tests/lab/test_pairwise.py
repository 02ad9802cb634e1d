"""--pairwise: the selection is complete, depends only on the items, and is small."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.mutation.points import SWITCHES, Switches, mutated, places
from lab.running.pairwise import cover, select
from tests.plugins.matrix import is_own_logic


def table(*sizes: int) -> dict[str, frozenset[object]]:
    values = [[(column, number) for number in range(size)] for column, size in enumerate(sizes)]
    return {
        str(row): frozenset(itertools.combinations(row, 2)) for row in itertools.product(*values)
    }


def test_every_pair_is_in_the_selection() -> None:
    rows = table(5, 4, 3, 3)
    kept = set(cover(rows))
    assert set().union(*(rows[name] for name in kept)) == set().union(*rows.values())
    assert len(kept) <= 2 * 5 * 4 < len(rows)


def test_it_depends_on_the_rows_alone() -> None:
    rows = table(4, 3, 3)
    shuffled = random.Random(7).sample(sorted(rows), len(rows))
    assert list(cover({name: rows[name] for name in shuffled})) == list(cover(rows))


def test_no_row_is_in_it_twice_or_for_nothing() -> None:
    rows = table(6, 2, 2)
    kept = list(cover(rows))
    assert len(kept) == len(set(kept))
    seen: set[object] = set()
    for name in kept:
        assert rows[name] - seen
        seen |= rows[name]


def test_of_two_columns_all_rows_are() -> None:
    assert set(cover(table(4, 3))) == {*table(4, 3)}


INNODB = {"mysql", "mariadb"}


def databases_of_tests(
    path: Path, *marks: pytest.Mark, tests: int, own_logic: bool = False
) -> dict[str, set[str]]:
    """Return the selected databases of these tests, which are identical tests of one file."""
    items: list[Any] = [
        SimpleNamespace(
            nodeid=f"{path.name}::test_{test}[{database}]",
            path=path,
            callspec=SimpleNamespace(params={"database": database}),
            iter_markers=lambda kind: [mark for mark in marks if mark.name == kind],
        )
        for test in range(tests)
        for database in ("postgresql", *INNODB)
    ]
    selected: Any = select(items, lambda _: own_logic)
    ids = ((item.nodeid.partition("[")[0], item.callspec.params["database"]) for item in selected)
    grouped: Iterator[tuple[str, Any]] = itertools.groupby(ids, lambda one: one[0])
    return {test: {database for _, database in found} for test, found in grouped}


def test_mysql_and_mariadb_take_turns_and_each_file_has_both(tmp_path: Path) -> None:
    file = tmp_path / "test_any.py"
    file.write_text("def test_other(): mysql\n\ndef test_0(database): ...")
    many = databases_of_tests(file, tests=20)
    assert all("postgresql" in found and len(found & INNODB) == 1 for found in many.values())
    assert all(3 < sum(one in found for found in many.values()) < 17 for one in INNODB)
    assert databases_of_tests(file, tests=1) == {"test_any.py::test_0": {"postgresql", *INNODB}}


def test_own_logic_runs_on_any_database_and_each_file_on_all(tmp_path: Path) -> None:
    file = tmp_path / "test_any.py"
    file.write_text("")
    many = databases_of_tests(file, tests=20, own_logic=True)
    assert len(many) == 20
    assert {len(found) for found in many.values()} == {1}
    assert set().union(*many.values()) == {"postgresql", *INNODB}


@pytest.mark.parametrize(
    ("path", "marker", "own_logic"),
    [
        ("tests/integration/guard/test_any.py", None, True),
        ("tests/integration/locking/test_any.py", None, False),
        ("tests/integration/locking/test_any.py", pytest.mark.own_logic, True),
        ("tests/unit/guard/test_any.py", None, False),
    ],
)
def test_a_folder_or_a_marker_says_that_it_is_own_logic(
    path: str, marker: object, own_logic: bool
) -> None:
    item: Any = SimpleNamespace(nodeid=f"{path}::test", get_closest_marker=lambda _: marker)
    assert is_own_logic(item) is own_logic


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("", [pytest.mark.databases("postgresql", "mysql", "mariadb").mark]),
        ("", [pytest.mark.not_databases("mariadb").mark]),
        ('"""On MySQL."""', []),
        ("# -----\n# On MySQL\n\nX = 1", []),
        ('KILL = {"mysql": "KILL {}"}\n\ndef kill(): return KILL', []),
        ("# MariaDB counts whole seconds\n\ndef kill(): ...", []),
        ("@pytest.fixture\ndef kill(): ...  # MariaDB counts whole seconds", []),
    ],
    ids=[
        *("a marker", "a marker that excludes", "the docstring", "a heading", "a table"),
        *("a comment above", "a comment"),
    ],
)
def test_a_test_that_names_one_of_the_two_is_on_both(
    tmp_path: Path, text: str, marks: list[pytest.Mark]
) -> None:
    file = tmp_path / "test_one.py"
    tests = "".join(f"\n\ndef test_{number}(database, kill): ..." for number in range(5))
    file.write_text(text + tests)
    found = databases_of_tests(file, *marks, tests=5)
    assert set(map(frozenset, found.values())) == {frozenset({"postgresql", *INNODB})}


def items_of_three(path: Path, values: list[Any], *marks: pytest.Mark) -> list[Any]:
    """Return the items of a test with three parameters that have all of these values."""
    return [
        SimpleNamespace(
            nodeid=f"test_any.py::test_any[{number}]",
            path=path,
            callspec=SimpleNamespace(
                params=dict(zip("abc", row, strict=True)), indices=dict.fromkeys("abc", number)
            ),
            iter_markers=lambda kind: [mark for mark in marks if mark.name == kind],
        )
        for number, row in enumerate(itertools.product(values, repeat=3))
    ]


def test_values_that_do_not_depend_on_each_other_have_no_pairs(tmp_path: Path) -> None:
    items = items_of_three(tmp_path, [*range(5)], pytest.mark.each_value.mark)
    selected: Any = select(items, lambda _: False)
    assert 5 <= len(selected) <= 3 * 5
    for name in "abc":
        assert {item.callspec.params[name] for item in selected} == {*range(5)}


def test_values_that_cannot_be_hashed_have_pairs_too(tmp_path: Path) -> None:
    """Values are the same if they are the same object, whatever number pytest gives them in an item."""
    values: list[list[object]] = [[], [], [], [], []]
    selected: Any = select(items_of_three(tmp_path, values), lambda _: False)
    assert len(values) ** 2 <= len(selected) <= 2 * len(values) ** 2
    for one, other in itertools.combinations("abc", 2):
        pairs = [(item.callspec.params[one], item.callspec.params[other]) for item in selected]
        assert len({(id(first), id(second)) for first, second in pairs}) == len(values) ** 2


# --------------------------------------------------------------------------------------------------
# Each test runs on one database with each other parameter; every database gets its turn.

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


# --------------------------------------------------------------------------------------------------
# A mutant runs behind its switch, and the original stays unchanged.

SOURCE = '''
LIMIT = 3  # a module's own: no place

def check(a: int, b: int = 2, *, log=list) -> int | None:
    """Return something."""
    log.append(a)
    if a < b and not log == []:
        return a + 1
    return b if a else f"{a == b}"
'''


def results(active: int) -> tuple[Any, ...]:
    tree, _ = mutated(SOURCE, {place: place for place in range(places(SOURCE))})
    switches = Switches()
    switches.active = active
    module: dict[str, Any] = {SWITCHES: switches}
    exec(compile(tree, "one.py", "exec"), module)
    calls = []
    for a, b in ((1, 5), (2, 2), (3, 2), (0, 0)):
        log: list[int] = []
        calls += [module["check"](a, b, log=log), log]
    return (*calls, switches)


def test_without_a_switch_all_is_as_it_was() -> None:
    module: dict[str, Any] = {}
    exec(SOURCE, module)
    *found, switches = results(-1)
    expected = []
    for a, b in ((1, 5), (2, 2), (3, 2), (0, 0)):
        log: list[int] = []
        expected += [module["check"](a, b, log=log), log]
    assert found == expected
    assert switches == {*range(places(SOURCE))}


def test_each_switch_changes_something() -> None:
    original = results(-1)[:-1]
    reported = mutated(SOURCE, {place: place for place in range(places(SOURCE))})[1]
    same = [
        reported[number] for number in range(places(SOURCE)) if results(number)[:-1] == original
    ]
    assert same == []
    assert len(reported) == places(SOURCE) == 11
