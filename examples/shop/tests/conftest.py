"""An empty shop for each test, in the tests' own database."""

from collections.abc import Iterator

import pytest
import scratch
from shop.database import Session
from shop.models import Base, Item
from sqlalchemy import delete


@pytest.fixture(scope="session", autouse=True)
def tables() -> Iterator[None]:
    with scratch.tables():
        yield


@pytest.fixture(autouse=True)
def empty_shop(tables: None) -> None:
    with Session.begin() as session, session.unguarded():
        for table in reversed(Base.metadata.sorted_tables):
            session.execute(delete(table))
        session.add_all([Item(id=1, price=10, stock=5), Item(id=2, price=20, stock=1)])
