"""The programs of the pages: the recipe for FastAPI, the shop, the tutorial."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from sa_doclock.dialects import ENTRY_POINT_GROUP, strategy_for
from sa_doclock.dialects.base import LockStrategy
from tests.docs.pages import ROOT, blocks_of
from tests.docs.programs import empty_database, python_environment, run_python
from tests.integration.asyncio.drivers import drivers_of, for_asyncio, url_for
from tests.support.actors import Actor
from tests.support.databases import PIPELINED, Database
from tests.support.entry_points import installed
from tests.support.models import Base, Order, refill
from tests.support.waits import wait_until_blocked

FOR_UPDATE, SHARED = LockOptions.ForUpdate, LockOptions.SharedRead


# --------------------------------------------------------------------------------------------------
# The FastAPI program of docs/testing.md and its tests pass on every asynchronous driver.

FILES = {block.name: block.text for block in blocks_of("docs/testing.md") if block.is_file}
URL = "postgresql+asyncpg://user:password@host/shop"
LOCKED = "Session() as session, session.locked(Order, ident) as order:"
NOT_LOCKED = "Session.begin() as session:\n        order = await session.get_one(Order, ident)"


def pytest_says(folder: Path, url: sa.URL, *names: str, app: str = FILES["app.py"]) -> str:
    """Write the files, with this URL in the program, and run pytest with these arguments."""
    assert URL in app
    written = {**FILES, "app.py": app.replace(URL, url.render_as_string(hide_password=False))}
    for name, text in written.items():
        (folder / str(name)).write_text(text + "\n", encoding="utf-8")
    options = ("-p", "no:cacheprovider", "-p", "no:randomly", "-W", "error")
    done = run_python(folder, "-m", "pytest", *options, *names)
    return done.stdout + done.stderr


@pytest.fixture
def urls(database: Database) -> Iterator[list[sa.URL]]:
    """Yield the URL of an empty database for each asynchronous driver."""
    pytest.importorskip("fastapi", reason="THE RECIPE DID NOT RUN: pip install fastapi httpx")
    pytest.importorskip("httpx", reason="THE RECIPE DID NOT RUN: pip install fastapi httpx")
    drivers = [url_for(database, one).get_driver_name() for one in drivers_of(database.column)]
    with empty_database(database) as url:
        yield [for_asyncio(url, driver) for driver in drivers]


@pytest.mark.slow
@pytest.mark.not_databases("postgresql-pipeline")
def test_the_recipe_for_asyncio(urls: list[sa.URL], tmp_path: Path) -> None:
    assert "asyncpg" in URL
    for url in urls:
        said = pytest_says(tmp_path, url, "test_app.py", "test_app_async.py")
        assert "2 passed" in said, said


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.databases("postgresql")
@pytest.mark.not_databases("postgresql-pipeline")
def test_its_test_finds_a_lock_that_is_missing(urls: list[sa.URL], tmp_path: Path) -> None:
    app = FILES["app.py"].replace(LOCKED, NOT_LOCKED)
    assert app != FILES["app.py"]
    for url in urls:
        said = pytest_says(tmp_path, url, "test_app.py", app=app)
        assert "nobody has locked Order 42 FOR UPDATE" in said, said


@pytest.mark.slow
@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.not_databases("sqlite-journal", "postgresql-pipeline")
@pytest.mark.parametrize("name", ["orders", "customers"])
@pytest.mark.parametrize("file", ["test_app.py", "test_app_async.py"])
def test_its_test_refuses_a_database_that_holds_anything(
    urls: list[sa.URL], database: Database, tmp_path: Path, name: str, file: str
) -> None:
    url = urls[0]
    engine = sa.create_engine(sa.make_url(database.url).set(database=url.database))
    table = sa.Table(name, sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    with engine.begin() as connection:
        table.create(connection)
        connection.execute(table.insert().values(id=1))
    said = pytest_says(tmp_path, url, file)
    assert "SHOP_URL must name an empty database" in said, said
    with engine.connect() as connection:
        assert sa.inspect(connection).get_table_names() == [name]
        assert connection.execute(table.select()).all() == [(1,)]
    engine.dispose()


# --------------------------------------------------------------------------------------------------
# examples/shop: its tests and its load with kills pass on each database, apart from the shop's own.

NO_PLUGINS = ("-p", "no:cacheprovider", "-p", "no:randomly")


@pytest.fixture
def shop(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a copy of the shop, whose tests and load use an empty database."""
    pytest.importorskip(
        "fastapi", reason="THE SHOP DID NOT RUN: pip install fastapi uvicorn httpx alembic"
    )
    pytest.importorskip(
        "uvicorn", reason="THE SHOP DID NOT RUN: pip install fastapi uvicorn httpx alembic"
    )
    monkeypatch.setenv("SHOP_URL", "sqlite:////no/such/folder/shop.db")
    with empty_database(database) as url:
        monkeypatch.setenv("SHOP_TEST_URL", url.render_as_string(hide_password=False))
        yield Path(shutil.copytree(ROOT / "examples" / "shop", tmp_path / "shop"))


@pytest.mark.slow
@pytest.mark.not_databases("mssql", "sqlite-journal", "postgresql-pipeline")
def test_its_tests(shop: Path) -> None:
    done = run_python(shop, "-m", "pytest", *NO_PLUGINS)
    assert re.search(r"\d\d passed", done.stdout), done.stdout + done.stderr
    assert " failed" not in done.stdout


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.not_databases("mssql", "sqlite-journal", "postgresql-pipeline")
def test_its_load_with_kills(shop: Path) -> None:
    done = run_python(shop, "load.py", "--seconds", "20", "--kill-every", "4")
    assert "all is right" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.databases("postgresql")
@pytest.mark.parametrize(
    ("what", "instead"),
    [
        ("items = session.get_entities(Item, list(basket), LockOptions.ForUpdate)",
         "items = [session.get_one(Item, ident) for ident in basket]"),
        ("session.get_one_entity(Order, ident, LockOptions.ForUpdate)", "session.get_one(Order, ident)"),
    ],
    ids=["items", "order"],
)  # fmt: skip
def test_its_tests_find_a_lock_that_is_missing(shop: Path, what: str, instead: str) -> None:
    for name, old, new in (
        ("orders.py", what, instead),
        ("database.py", "class_=LockingSession,", 'class_=LockingSession, guard="off",'),
    ):
        path = shop / "shop" / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
    done = run_python(shop, "-m", "pytest", *NO_PLUGINS)
    assert " failed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.not_databases("sqlite-journal", "postgresql-pipeline")
@pytest.mark.parametrize("command", [("-m", "pytest", *NO_PLUGINS), ("load.py", "--seconds", "1")])
def test_a_database_that_holds_anything_is_refused(shop: Path, command: tuple[str, ...]) -> None:
    engine = sa.create_engine(os.environ["SHOP_TEST_URL"], poolclass=sa.NullPool)
    for name in ("customers", "orders"):
        table = sa.Table(name, sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
        with engine.begin() as connection:
            table.create(connection)
            connection.execute(table.insert().values(id=1))
        done = run_python(shop, *command)
        said = done.stdout + done.stderr
        assert done.returncode != 0
        assert f"must name an empty database; this one has ['{name}']" in said, said
        with engine.begin() as connection:
            assert sa.inspect(connection).get_table_names() == [name]
            assert connection.execute(table.select()).all() == [(1,)]
            table.drop(connection)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Run ``python -m shop``; yield its URL once it answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "shop", "--port", str(port)]
    process = subprocess.Popen(command, cwd=folder, env=python_environment())
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_the_readme_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run its commands in turn while the shop runs; an existing order survives."""
    httpx = pytest.importorskip("httpx", reason="THE SHOP DID NOT RUN: pip install httpx")
    pytest.importorskip("uvicorn", reason="THE SHOP DID NOT RUN: pip install uvicorn")
    for name in ("SHOP_URL", "SHOP_TEST_URL"):
        monkeypatch.delenv(name, raising=False)
    folder = Path(shutil.copytree(ROOT / "examples" / "shop", tmp_path / "shop"))
    (block,) = re.findall(
        r"^```sh\n(.*?)^```$", (folder / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    commands = [line.partition("#")[0].split() for line in block.splitlines()]
    install, serve, *others = commands
    assert (install[:2], serve) == (["pip", "install"], ["python", "-m", "shop"])
    waits = httpx.HTTPTransport(retries=7)  # until the server listens, for at most half a minute
    with served(folder) as url, httpx.Client(base_url=url, transport=waits) as client:
        client.put("/orders/mine", json={"1": 2}).raise_for_status()
        placed = client.get("/orders/mine").json()
        for python, *words in others:
            assert python == "python"
            quick = ("--seconds", "2", "--kill-every", "1") if words == ["load.py"] else NO_PLUGINS
            done = run_python(folder, *words, *quick)
            assert done.returncode == 0, done.stdout + done.stderr
        assert client.get("/orders/mine").json() == placed
    with sa.create_engine(f"sqlite:///{folder / 'shop.db'}").connect() as connection:
        counts = [
            connection.scalar(sa.text(f"SELECT count(*) FROM {one}")) for one in ("orders", "items")
        ]
        assert counts == [1, 3]
        assert connection.scalar(sa.text("SELECT stock FROM items WHERE id = 1")) == 998


# --------------------------------------------------------------------------------------------------
# The tutorial works: its files, written step by step into an empty folder, pass under pytest.

PAGE = "docs/tutorial.md"
AFTER = "after "


def pytest_says_tutorial(folder: Path) -> str:
    """Run the folder's tests as the page describes, and return the output."""
    done = run_python(folder, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly")
    return done.stdout + done.stderr


@pytest.mark.slow
def test_each_step_ends_as_the_page_says(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="THE TUTORIAL DID NOT RUN: pip install fastapi httpx")
    pytest.importorskip("httpx", reason="THE TUTORIAL DID NOT RUN: pip install fastapi httpx")
    shop = tmp_path / "shop.db"
    steps = 0
    for block in blocks_of(PAGE):
        if block.name is None:
            continue
        if not block.name.startswith(AFTER):
            (tmp_path / block.name).write_text(block.text + "\n", encoding="utf-8")
            continue
        said = pytest_says_tutorial(tmp_path)
        for line in block.text.splitlines():
            assert re.search(rf"\b{re.escape(line)}\b", said), f"{block}\n{said}"
        steps += 1
        with sqlite3.connect(shop) as connection:  # the tests ignore the reader's own order
            connection.execute("INSERT OR IGNORE INTO orders (id, total) VALUES (42, 1)")
            assert connection.execute("SELECT * FROM orders").fetchall() == [(42, 1)]
        connection.close()
    assert steps == 4


def test_the_tutorial_has_six_steps() -> None:
    steps = re.findall(r"^## Step (\d):", (ROOT / PAGE).read_text(encoding="utf-8"), re.MULTILINE)
    assert steps == list("123456")


# --------------------------------------------------------------------------------------------------
# The smallest dialect of docs/adding-a-dialect.md, installed as a package, locks on a real server.

PAGE_ADDING_DIALECT = "docs/adding-a-dialect.md"
Session = Actor[LockingSession]


class AcmeDialect(PGDialect_psycopg):
    """PostgreSQL under another name, which no built-in strategy supports."""

    name = "acme"
    supports_statement_cache = True


registry.register("acme", __name__, "AcmeDialect")


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Install the package from the page, with its class and its entry point; yield its name."""
    (smallest,) = (
        block.text for block in blocks_of(PAGE_ADDING_DIALECT) if block.name == "smallest"
    )
    (toml,) = (block.text for block in blocks_of(PAGE_ADDING_DIALECT) if block.language == "toml")
    found = re.fullmatch(r'\[project\.entry-points\."(\S+)"\]\n(\w+) = "(\S+)"', toml)
    assert found is not None
    group, name, value = found.groups()
    assert group == ENTRY_POINT_GROUP
    with installed({name: value}, tmp_path) as site:
        site.joinpath("acme_locks.py").write_text(smallest, encoding="utf-8")
        yield name
    monkeypatch.delitem(sys.modules, "acme_locks", raising=False)


@pytest.fixture
def session_factory(
    database: Database, acme: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], LockingSession]:
    """Make sessions on the tables of tests/support/models.py, in the database under its other name."""
    database.create(Base.metadata)
    with database.engine().begin() as connection:
        refill(connection)
    url = sa.make_url(database.url).set(drivername=acme)
    monkeypatch.setattr(database, "url", url.render_as_string(hide_password=False))
    engine = database.engine()
    return lambda: LockingSession(engine)


def locks(lock: LockOptions) -> Callable[[LockingSession], int]:
    return lambda session: session.get_one_entity(Order, 1, lock).total


def add_ten(session: LockingSession) -> None:
    session.get_one(Order, 1).total += 10
    session.save_changes()


def the_strategy(session: LockingSession) -> LockStrategy:
    return strategy_for(session.get_bind())


@pytest.mark.databases("postgresql")
@pytest.mark.not_databases(PIPELINED)
def test_it_has_a_name_and_two_objects(alice: Session) -> None:
    strategy = type(alice.does(the_strategy))
    assert strategy.__module__ == "acme_locks"
    own = {name for name in vars(strategy) if not name.startswith("_")}
    assert own == {"name", "isolation", "errors"}
    assert strategy.__mro__[1] is LockStrategy


@pytest.mark.databases("postgresql")
@pytest.mark.not_databases(PIPELINED)
@pytest.mark.parametrize(("first", "second"), [(FOR_UPDATE, FOR_UPDATE), (SHARED, FOR_UPDATE)])
def test_a_second_session_waits_for_its_lock(
    alice: Session, bob: Session, first: LockOptions, second: LockOptions
) -> None:
    before = alice.does(locks(first))
    queued = bob.starts(locks(second))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(add_ten if first is FOR_UPDATE else LockingSession.release_locks)
    assert queued.result() == before + (10 if first is FOR_UPDATE else 0)


@pytest.mark.databases("postgresql")
@pytest.mark.not_databases(PIPELINED)
def test_its_numbers_become_typed_errors(alice: Session, bob: Session) -> None:
    alice.does(locks(FOR_UPDATE))
    with pytest.raises(LockNotAvailable, match="NOWAIT on acme"):
        bob.does(locks(FOR_UPDATE | LockOptions.NoWait))
