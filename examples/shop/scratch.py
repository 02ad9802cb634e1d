"""A database for the tests and the load: SHOP_TEST_URL, or else a temporary SQLite file.

Import it before the shop, so that the shop uses this database instead of its own.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from sqlalchemy import MetaData, inspect

FOLDER = TemporaryDirectory(prefix="shop-", ignore_cleanup_errors=True)
os.environ["SHOP_URL"] = os.environ.get("SHOP_TEST_URL") or f"sqlite:///{FOLDER.name}/shop.db"


@contextmanager
def tables() -> Iterator[None]:
    """Create the tables, and drop them at the end.

    :raises SystemExit: the database already has a table, and may belong to someone.
    """
    from shop.__main__ import migrate  # noqa: PLC0415  # the shop reads SHOP_URL at import
    from shop.database import engine  # noqa: PLC0415

    if found := inspect(engine).get_table_names():
        raise SystemExit(f"SHOP_TEST_URL must name an empty database; this one has {found}")
    migrate()
    yield
    engine.dispose()
    everything = MetaData()
    everything.reflect(engine)
    everything.drop_all(engine)
