"""The FastAPI program of docs/testing.md, and its tests, on every asynchronous driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.docs.pages import blocks_of
from tests.docs.programs import empty_database, run_python
from tests.integration.asyncio.drivers import drivers_of, for_asyncio, url_for
from tests.support.databases import Database

FILES = {block.name: block.text for block in blocks_of("docs/testing.md") if block.is_file}
URL = "postgresql+asyncpg://user:password@host/shop"
LOCKED = "Session() as session, session.locked(Order, ident) as order:"
NOT_LOCKED = "Session.begin() as session:\n        order = await session.get_one(Order, ident)"


def pytest_says(folder: Path, url: sa.URL, *names: str, app: str = FILES["app.py"]) -> str:
    """Write the files, with this URL in the program, and run pytest with these."""
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
