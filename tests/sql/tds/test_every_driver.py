"""The statements that SQLAlchemy sends over each driver, and the number in what the driver raises."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.exc import DBAPIError

from sa_doclock.dialects import strategy_for
from tests.sql.models import Customer
from tests.sql.tds.engines import ENGINES
from tests.sql.tds.server import TDSServer
from tests.sql.test_mssql_errors import known_numbers


@pytest.fixture
def engine(any_driver: str, wire: TDSServer) -> Iterator[Engine]:
    """Give the test an engine over each driver."""
    engine = ENGINES[any_driver](wire.port, pool_size=1, max_overflow=0)
    strategy_for(engine)
    yield engine
    engine.dispose()


def test_each_known_number_is_found_in_what_the_driver_itself_raises(
    engine: Engine, wire: TDSServer
) -> None:
    strategy, found = strategy_for(engine), {}
    for number in sorted(known_numbers()):
        with engine.connect() as connection:
            wire.database.failures.append(("FROM shop_customer", number))
            with pytest.raises(DBAPIError) as caught:
                connection.execute(select(Customer.__table__))
            assert caught.value.orig is not None
            found[number] = strategy.errors[strategy.errors.native_code(caught.value.orig)]
            connection.invalidate()  # its transaction may be gone
    assert found == {number: strategy.errors[number] for number in found}
