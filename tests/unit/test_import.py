"""The imports between the files of the package, each resolved to the file that defines the name.

An import under ``TYPE_CHECKING`` or in a function counts too: readers have to follow it as well.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import networkx as nx
import pytest

import sa_doclock
from tests.support.fresh_process import FreshProcesses

PACKAGE = Path(sa_doclock.__file__).parent
Graph = Mapping[str, frozenset[str]]


@cache
def import_graph() -> Graph:
    """Return the files that each file imports from, as paths such as ``core/transaction/state.py``."""
    return {
        _name(path): frozenset(map(_name, _imported(path))) - {_name(path)}
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "__init__.py"
    }


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _imported(path: Path) -> Iterator[Path]:
    for node in _imports_of(path):
        origin = _origin(path, node)
        if origin is not None:
            yield from (found for one in node.names if (found := _home(origin, one.name)))


def _origin(path: Path, node: ast.ImportFrom) -> Path | None:
    """Return the imported file or folder; None if it is not part of the package."""
    parts = node.module.split(".") if node.module else []
    if node.level == 0:
        if parts[:1] != ["sa_doclock"]:
            return None
        return _file(PACKAGE.joinpath(*parts[1:]))
    return _file(path.parents[node.level - 1].joinpath(*parts))


def _file(place: Path) -> Path:
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def _home(origin: Path, name: str) -> Path | None:
    """Return the file that defines a name importable from this file."""
    if origin.name != "__init__.py":
        return origin if origin.exists() else None
    module = _file(origin.parent / name)
    if module.exists():
        return module
    for node in _imports_of(origin):
        if any(name == (one.asname or one.name) for one in node.names):
            inner = _origin(origin, node)
            return None if inner is None else _home(inner, name)
    return None  # defined in the __init__ itself


@cache
def _imports_of(path: Path) -> list[ast.ImportFrom]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


# --------------------------------------------------------------------------------------------------
# ``import sa_doclock`` loads only SQLAlchemy, and adds no listener to a connection pool.


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run the code in a new Python process, with some modules hidden from SQLAlchemy."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "absent", ["greenlet", "tenacity", "alembic", "typer", "rich", "psycopg", "pymysql"]
)
def test_it_works_without_an_extra(absent: str) -> None:
    result = run(f"import sys; sys.modules[{absent!r}] = None; import sa_doclock; print('ok')")
    assert (result.stdout, result.stderr) == ("ok\n", "")


def test_no_pool_is_listened_to_before_a_session_of_ours_has_used_one(
    fresh: FreshProcesses,
) -> None:
    result = fresh.run("""if True:
        import sqlalchemy as sa
        import sa_doclock

        def listeners(pool):
            events = "connect", "first_connect", "checkout", "checkin", "reset", "invalidate"
            return [name for name in events if len(getattr(pool.dispatch, name))]

        engine = sa.create_engine("sqlite:///")
        before = listeners(engine.pool)
        with sa_doclock.LockingSession(engine) as session:
            session.commit()  # of no connection
            assert listeners(engine.pool) == before, listeners(engine.pool)
            session.execute(sa.text("SELECT 1"))
            session.commit()
        print("reset" in before, "reset" in listeners(engine.pool))
    """)
    assert (result.stdout, result.stderr) == ("False True\n", "")


def test_the_test_kit_needs_no_pytest(
    fresh: FreshProcesses,
) -> None:
    result = fresh.run(
        "import sys; sys.modules['pytest'] = None; import sa_doclock.testing; print('ok')"
    )
    assert (result.stdout, result.stderr) == ("ok\n", "")


def test_the_package_does_not_load_the_test_kit(
    fresh: FreshProcesses,
) -> None:
    loaded = fresh.run("import sa_doclock, sys; print('sa_doclock.testing' in sys.modules)")
    assert (loaded.stdout, loaded.stderr) == ("False\n", "")


def test_every_public_name_is_there() -> None:
    assert sorted(sa_doclock.__all__) == sa_doclock.__all__
    for name in sa_doclock.__all__:
        assert getattr(sa_doclock, name).__name__ == name


def test_dir_has_the_names_that_are_not_loaded_yet(fresh: FreshProcesses) -> None:
    result = fresh.run(
        "import sa_doclock\n"
        "names = {*sa_doclock.__all__, *sa_doclock._RETURNED, '__version__'}\n"
        "print(names - {*dir(sa_doclock)}, 'run_transaction' in vars(sa_doclock))"
    )
    assert (result.stdout, result.stderr) == ("set() False\n", "")


def test_every_member_can_be_inspected_without_greenlet() -> None:
    result = run(
        "import sys; sys.modules['greenlet'] = None\n"
        "import inspect, sa_doclock\n"
        "names = {name for name, _ in inspect.getmembers(sa_doclock)}\n"
        "print('claim_each' in names, 'AsyncLockingSession' in names)"
    )
    assert (result.stdout, result.stderr) == ("True False\n", "")


def test_no_name_is_hidden_by_a_module_of_that_name() -> None:
    # Importing a module sets its name in the package.
    modules = {path.stem for path in PACKAGE.iterdir()}
    assert modules & sa_doclock._MODULES.keys() == set()


@pytest.mark.parametrize(("name", "module"), sa_doclock._RETURNED.items())
def test_a_type_that_functions_return_can_be_imported_from_both_places(
    name: str, module: str
) -> None:
    assert getattr(sa_doclock, name) is getattr(import_module(f"sa_doclock.{module}"), name)
    assert name not in sa_doclock.__all__


def test_a_star_import_needs_no_greenlet() -> None:
    result = run(
        "import sys; sys.modules['greenlet'] = None\n"
        "from sa_doclock import *\n"
        "print(LockingSession.__name__, 'AsyncLockingSession' in globals())"
    )
    assert (result.stdout, result.stderr) == ("LockingSession False\n", "")


def test_a_star_import_has_every_public_name(
    fresh: FreshProcesses,
) -> None:
    result = fresh.run(
        "import sa_doclock\n"
        "from sa_doclock import *\n"
        "print(set(sa_doclock.__all__) - globals().keys(), 'AsyncLockingSession' in globals())"
    )
    assert (result.stdout, result.stderr) == ("set() True\n", "")


def test_it_has_a_version_that_the_import_does_not_look_up(
    fresh: FreshProcesses,
) -> None:
    assert sa_doclock.__version__ == version("sa-doclock")
    loaded = fresh.run("import sa_doclock, sys; print('__version__' in vars(sa_doclock))")
    assert (loaded.stdout, loaded.stderr) == ("False\n", "")


def test_the_version_of_a_copy_that_is_not_installed_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def not_found(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", not_found)
    assert sa_doclock.__version__ == "unknown"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'NoSuchThing'"):
        sa_doclock.NoSuchThing  # noqa: B018


# --------------------------------------------------------------------------------------------------
# The package has no circular imports: each file can be read after those below it.


def circles(graph: Graph) -> list[list[str]]:
    drawn: nx.DiGraph[str] = nx.DiGraph()
    drawn.add_edges_from((name, other) for name, others in graph.items() for other in others)
    return sorted(sorted(some) for some in nx.strongly_connected_components(drawn) if len(some) > 1)


def test_no_file_imports_another_in_a_circle() -> None:
    assert circles(import_graph()) == []


def test_a_circle_is_found() -> None:
    graph = {name: frozenset(others) for name, others in {"a": "b", "b": "c", "c": "a"}.items()}
    assert circles({**graph, "d": frozenset("a")}) == [["a", "b", "c"]]


def test_the_graph_leads_to_the_file_that_has_the_name() -> None:
    found = import_graph()["core/session/lock_methods.py"]
    assert "core/locking/acquire.py" in found  # by the __init__ of its package
    assert "options.py" in found


# --------------------------------------------------------------------------------------------------
# ``import sa_doclock`` adds no listener to a class of SQLAlchemy; the first use does.

RECORD = """
import json
import sqlalchemy.ext.asyncio
from sqlalchemy import event

heard = []
listen, listens_for = event.listen, event.listens_for


def record(target, name):
    if isinstance(target, type) and target.__module__.startswith("sqlalchemy."):
        heard.append((target.__name__, name))


def recorded_listen(target, name, *args, **kwargs):
    record(target, name)
    return listen(target, name, *args, **kwargs)


def recorded_listens_for(target, name, *args, **kwargs):
    record(target, name)
    return listens_for(target, name, *args, **kwargs)


event.listen, event.listens_for = recorded_listen, recorded_listens_for
"""


def listeners_of(fresh: FreshProcesses, code: str) -> list[tuple[str, str]]:
    """Return the class and the event of each listener that the code adds."""
    ran = fresh.run(f"{RECORD}\n{code}\nprint(json.dumps(heard))")
    assert ran.stderr == ""
    return [(target, name) for target, name in json.loads(ran.stdout)]


# Not Pool: sa_doclock.pool listens to it at import.
@pytest.mark.parametrize("module", ["sa_doclock", "sa_doclock.asyncio"])
def test_the_import_adds_no_listener(module: str, fresh: FreshProcesses) -> None:
    targets = {"Mapper", "Session", "Engine", "Connection", "Dialect"}
    assert [heard for heard in listeners_of(fresh, f"import {module}") if heard[0] in targets] == []


MODEL = """
from sqlalchemy import Integer, select
from sqlalchemy.orm import DeclarativeBase, mapped_column
from sa_doclock import LockOptions, document, with_lock
class Base(DeclarativeBase):
    pass
class Order(Base):
    __tablename__ = "orders"
    id = mapped_column(Integer, primary_key=True)
"""


@pytest.mark.parametrize(
    ("code", "added"),
    [("document(Order)", 2), ("with_lock(select(Order), LockOptions.ForUpdate)", 1)],
    ids=["document", "with_lock"],
)
def test_the_first_use_listens_to_mappers_once(
    code: str, added: int, fresh: FreshProcesses
) -> None:
    for times in (1, 2):
        heard = listeners_of(fresh, MODEL + f"{code}\n" * times)
        assert heard.count(("Mapper", "after_configured")) == added


# --------------------------------------------------------------------------------------------------
# The modules that ``import sa_doclock`` loads, counted: a time would depend on the machine.

#: Each module adds about 0.3 ms to the start of a program.
MODULES = 102

LATE = (
    "sa_doclock.asyncio",
    "sa_doclock.claims",
    "sa_doclock.decorator",
    "sa_doclock.dialects.innodb",
    "sa_doclock.dialects.mariadb",
    "sa_doclock.dialects.mssql",
    "sa_doclock.dialects.mysql",
    "sa_doclock.dialects.postgresql",
    "sa_doclock.dialects.sqlite",
    "sa_doclock.features.batch",
    "sa_doclock.features.checkouts",
    "sa_doclock.features.gate",
    "sa_doclock.features.hold_limit",
    "sa_doclock.features.on_commit",
    "sa_doclock.features.pipeline",
    "sa_doclock.features.routing",
    "sa_doclock.retry",
    "sa_doclock.scoped_session",
    "sa_doclock.testing",
    "sa_doclock.tools",
    "sa_doclock.wait_info",
    "sqlite3",
)


@pytest.fixture
def loaded(fresh: FreshProcesses) -> list[str]:
    result = fresh.run("""if True:
        import json, sys
        import sqlalchemy.orm
        before = {*sys.modules}
        import sa_doclock
        print(json.dumps(sorted(sys.modules.keys() - before)))
    """)
    assert result.stderr == ""
    modules: list[str] = json.loads(result.stdout)
    return modules


def test_the_import_loads_few_modules(loaded: list[str]) -> None:
    assert len([name for name in loaded if name.startswith("sa_doclock")]) == MODULES


def test_what_a_session_may_never_use_is_loaded_at_its_first_use(loaded: list[str]) -> None:
    assert [name for name in loaded if name.startswith(LATE)] == []
