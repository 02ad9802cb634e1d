"""SQLAlchemy Core."""

from __future__ import annotations

import sqlalchemy as sa

from benchmarks.lab.models import Base, Detail, Doc, numbers
from benchmarks.ways import Way, nothing

doc = Base.metadata.tables[Doc.__tablename__]
detail = Base.metadata.tables[Detail.__tablename__]


def core(engine: sa.Engine) -> Way:
    def update(number: int) -> None:
        with engine.begin() as connection:
            header = sa.select(doc).where(doc.c.id == number).with_for_update()
            connection.execute(header).one()
            found = sa.select(detail).where(detail.c.doc_id == number)
            details = connection.execute(found).all()
            value = next(numbers)
            total = value + sum(one.value for one in details[1:])
            change = sa.update(detail).where(detail.c.id == details[0].id)
            connection.execute(change.values(value=value))
            connection.execute(sa.update(doc).where(doc.c.id == number).values(total=total))

    def load(number: int) -> int:
        with engine.connect() as connection:
            header = sa.select(doc).where(doc.c.id == number).with_for_update(read=True)
            connection.execute(header).one()
            found = sa.select(detail).where(detail.c.doc_id == number)
            total: int = sum(one.value for one in connection.execute(found))
            connection.rollback()
        return total

    return Way("SQLAlchemy Core", update, load, nothing)
