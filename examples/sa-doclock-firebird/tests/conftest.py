"""The engine that sa_doclock's dialect suite requires.

``SA_DOCLOCK_TEST_FIREBIRD_URL`` names the server; ``make firebird`` in the repository starts one.
Without the variable the tests are skipped; ``SA_DOCLOCK_TEST_REQUIRE=firebird`` makes that an error.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from firebird.driver import Isolation, tpb

URL = "SA_DOCLOCK_TEST_FIREBIRD_URL"

pytest.register_assert_rewrite("sa_doclock.testing.dialect_suite")  # so that failures have details


@pytest.fixture(scope="session")
def firebird_url() -> str:
    url = os.environ.get(URL)
    if url is None:
        reason = f"no Firebird: {URL} is not set; `make firebird` starts a server"
        if "firebird" in os.environ.get("SA_DOCLOCK_TEST_REQUIRE", ""):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    client = sa.make_url(url).query.get("fb_client_library")
    if isinstance(client, str):
        # For an unpacked package: its libraries are beside it, outside the loader's paths.
        for library in Path(client).parent.glob("libtommath.so.1"):
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    return url


@pytest.fixture(scope="session")
def engine(firebird_url: str) -> Iterator[sa.Engine]:
    """Return an engine whose transactions are READ COMMITTED, as on most databases.

    The driver's default is SNAPSHOT, in which Firebird refuses the second writer of a row.  Programs without
    locks would fail there instead of losing updates.
    """
    engine = sa.create_engine(firebird_url, pool_size=20)

    @sa.event.listens_for(engine, "connect")
    def read_committed(driver: Any, _record: Any) -> None:
        driver.main_transaction.default_tpb = tpb(Isolation.READ_COMMITTED_RECORD_VERSION)

    yield engine
    engine.dispose()
