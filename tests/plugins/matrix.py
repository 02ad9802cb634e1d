"""The database matrix: which tests run, and on which databases.

A test with the fixture ``database`` runs once on each database. It limits itself with
``@pytest.mark.databases("postgresql", "mysql")`` or ``@pytest.mark.not_databases("sqlite")``.
``--databases`` limits a run; ``postgresql-pipeline`` and the poolers run only if it names them.
``--pairwise`` runs a selection (lab/running/pairwise.py).
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from lab.running import pairwise
from lab.running.workers import note_skipped
from lab.servers import NAMES, why_unobtainable
from tests.support.databases import MATRIX, PIPELINED, POOLERS, product

#: Folders of tests/integration whose tests check decisions of the library alone, like tests marked
#: own_logic. Their SQL does not depend on the journal mode of an SQLite file.
OWN_LOGIC = (
    *("batch", "claims", "documents", "gate", "guard", "instrumentation", "lock_order"),
    *("mappings", "mistakes", "on_commit", "pool_reset", "retry", "versions"),
)

#: Columns of the matrix that tests do not run on by default.
ONLY_NAMED = (PIPELINED, *POOLERS)

UNOBTAINABLE = pytest.StashKey[dict[str, str]]()
PRODUCTS = tuple(dict.fromkeys(map(product, MATRIX)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--databases",
        default=",".join(PRODUCTS),
        help=f"the databases to test on, separated by commas; of {', '.join(MATRIX)}",
    )
    parser.addoption(
        "--pairwise",
        action="store_true",
        help="pairs of test, database and parameters in place of all combinations",
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in ("databases", "not_databases"):
        config.addinivalue_line("markers", f"{marker}(*names): which databases this test is for")
    config.addinivalue_line("markers", "only_on(*names): which clusters this test is for")
    config.addinivalue_line(
        "markers", "own_logic: the library decides by itself; --pairwise runs it on any database"
    )
    config.addinivalue_line(
        "markers",
        "each_value: its parameters do not depend on each other; --pairwise runs each value, not each pair",
    )
    config.addinivalue_line("markers", "poolers: runs on each pooler, also where none is named")
    config.stash[UNOBTAINABLE] = {name: why for name in NAMES if (why := why_unobtainable(name))}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses ``database`` once on each of its databases."""
    if "database" not in metafunc.fixturenames:
        return
    columns = named(metafunc.config.getoption("databases"))
    if metafunc.definition.get_closest_marker("poolers"):
        columns = [*POOLERS] if set(columns) & {"postgresql", *POOLERS} else []
    elif is_own_logic(metafunc.definition):
        columns = [one for one in columns if one != "sqlite-journal"]
    for mark in metafunc.definition.iter_markers("databases"):
        columns = [column for column in columns if column in columns_of(mark.args)]
    for mark in metafunc.definition.iter_markers("not_databases"):
        columns = [column for column in columns if column not in columns_of(mark.args)]
    metafunc.parametrize("database", _obtainable(metafunc.config, columns), indirect=True)


@pytest.hookimpl(trylast=True)  # after -m and -k: pairs of the remaining tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests without a database in this run, and tests that ``--pairwise`` does not select."""
    selected = [item for item in items if not _uses_database(item) or column_of(item)]
    if config.getoption("pairwise"):
        selected = pairwise.select(selected, is_own_logic)
    kept = set(selected)
    if others := [item for item in items if item not in kept]:
        config.hook.pytest_deselected(items=others)
        items[:] = selected


# --------------------------------------------------------------------------------------------------
# Columns: the databases of the matrix.


def columns_of(names: Iterable[str]) -> list[str]:
    """Return the columns of the matrix for these names; ``sqlite`` stands for both SQLite columns."""
    wanted = [name.strip() for name in names]
    if unknown := [name for name in wanted if name not in MATRIX]:
        msg = f"no such database: {', '.join(unknown)}; there are {', '.join(MATRIX)}"
        raise pytest.UsageError(msg)
    return [column for column in MATRIX if column in wanted or product(column) in wanted]


def named(option: str) -> list[str]:
    names = option.split(",")
    return [one for one in columns_of(names) if one not in ONLY_NAMED or one in names]


def _obtainable(config: pytest.Config, columns: list[str]) -> list[str]:
    """Return the columns with an available server here; report the others prominently in the summary."""
    missing = config.stash[UNOBTAINABLE]
    for name in {product(column) for column in columns} & {*missing}:
        note_skipped(config, f"DATABASE {name}", missing[name])
    return [column for column in columns if product(column) not in missing]


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def is_own_logic(item: pytest.Item) -> bool:
    folders = item.nodeid.partition("::")[0].split("/")
    is_of_folder = folders[:2] == ["tests", "integration"] and folders[2] in OWN_LOGIC
    return is_of_folder or item.get_closest_marker("own_logic") is not None


def _uses_database(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and "database" in item.fixturenames


def column_of(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    column = None if callspec is None else callspec.params.get("database")
    return column if isinstance(column, str) else None  # otherwise no database is left for it
