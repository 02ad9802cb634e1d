"""``import sa_doclock`` loads SQLAlchemy and nothing else, and listens to no connection pool."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import pytest

import sa_doclock
from tests.support.fresh_process import FreshProcesses


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run the code in a new Python, for modules that SQLAlchemy must not find either."""
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
