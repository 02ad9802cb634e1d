"""A version costs no statement for each row, in no transaction of a session."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session, sessionmaker

from sa_doclock import LockingSession, LockOptions
from tests.integration.versions.models import KINDS

LINES = 9


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("guard", ["raise", "off"])
@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize(
    ("header", "line"), KINDS[:2]
)  # the trigger of the third comes after RETURNING
def test_many_lines_in_every_transaction(
    factory: sessionmaker[LockingSession], header: Any, line: Any, expired: bool, guard: str
) -> None:
    engine: Any = factory.kw["bind"]
    with Session(engine) as plain, plain.begin():
        plain.add_all([line(id=100 + number, header_id=1, value=0) for number in range(LINES)])
    selects: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        selects.extend([statement] if statement.startswith("SELECT") else [])

    with factory(guard=guard) as session:
        kept: list[Any] = []
        for _ in range(3):
            found = session.get_one_entity(header, 1, LockOptions.ForUpdate)
            kept += [found, *found.lines]
            for one in found.lines:
                if expired:
                    session.expire(one, ["header_id"])
                one.value += 1
            event.listen(engine, "before_cursor_execute", note)
            session.flush()
            event.remove(engine, "before_cursor_execute", note)
            session.commit()
            assert len(selects) <= 3
            selects.clear()
    with Session(engine) as plain, plain.begin():
        plain.execute(sa.delete(line).where(line.id >= 100))
