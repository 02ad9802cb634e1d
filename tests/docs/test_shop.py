"""examples/shop: its own tests, and its load with kills, on each database; and that both leave the shop's alone."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.docs.pages import ROOT
from tests.docs.programs import empty_database, python_environment, run_python
from tests.support.databases import Database

NO_PLUGINS = ("-p", "no:cacheprovider", "-p", "no:randomly")


@pytest.fixture
def shop(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a copy of the shop whose tests and load use an empty database; it has none for itself."""
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
    """Run ``python -m shop``; give its URL when it answers."""
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
    """Its commands, one after the other, while the shop goes on; an order that it has is still there."""
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
    waits = httpx.HTTPTransport(retries=7)  # until the server listens; half a minute at most
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
