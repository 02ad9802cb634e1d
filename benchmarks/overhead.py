"""What does sa_doclock cost over the same lock written by hand with SQLAlchemy?

One round updates a document (lock the header, read five details, change one, total again,
commit) or loads it (shared lock, read, release), by hand and with sa_doclock in turn.

    python benchmarks/overhead.py [--rounds 30] [--repeat 40] [--json FILE]

An SQLite file is always measured; another database where its URL is in
SA_DOCLOCK_TEST_POSTGRESQL_URL, SA_DOCLOCK_TEST_MYSQL_URL or SA_DOCLOCK_TEST_MARIADB_URL.
MySQL and MariaDB engines are made at READ COMMITTED, as docs/mysql.md advises: a lock then
needs no switch of the isolation level, by hand or not.
"""

from __future__ import annotations

from pairing import Pair, main
from sqlalchemy import Engine, ForeignKey
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    relationship,
    sessionmaker,
)

from sa_doclock import LockingSession, LockOptions

DETAILS = 5
GOAL = 1.03


class Base(DeclarativeBase):
    pass


class Doc(Base):
    __tablename__ = "doclock_overhead_doc"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    details: Mapped[list[Detail]] = relationship(cascade="all, delete-orphan")


class Detail(Base):
    __tablename__ = "doclock_overhead_detail"
    id: Mapped[int] = mapped_column(primary_key=True)
    doc_id: Mapped[int] = mapped_column(ForeignKey(Doc.id), index=True)
    value: Mapped[int]


def prepare(engine: Engine) -> list[Pair]:
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        details = [Detail(value=number) for number in range(DETAILS)]
        session.add(Doc(id=1, total=sum(d.value for d in details), details=details))
        session.commit()
    plain = sessionmaker(engine)
    locking = sessionmaker(engine, class_=LockingSession)
    numbers = iter(range(1, 1 << 62))

    def change(doc: Doc | None) -> None:
        assert doc is not None
        doc.details[0].value = next(numbers) % 1000
        doc.total = sum(detail.value for detail in doc.details)

    def update_by_hand() -> None:
        with plain() as session:
            begin_by_hand(session, "BEGIN IMMEDIATE")
            change(session.get(Doc, 1, with_for_update=True, populate_existing=True))
            session.commit()

    def update() -> None:
        with locking() as session:
            change(session.get_entity(Doc, 1, LockOptions.ForUpdate))
            session.save_changes()

    def load_by_hand() -> None:
        with plain() as session:
            begin_by_hand(session, "BEGIN")
            doc = session.get(Doc, 1, with_for_update={"read": True}, populate_existing=True)
            assert doc is not None
            assert doc.total == sum(detail.value for detail in doc.details)
            session.rollback()

    def load() -> None:
        with locking() as session:
            doc = session.get_entity(Doc, 1, LockOptions.SharedRead)
            assert doc is not None
            assert doc.total == sum(detail.value for detail in doc.details)
            session.release_locks()

    return [
        Pair("get_entity + save_changes", GOAL, update_by_hand, update),
        Pair("get_entity + release_locks", GOAL, load_by_hand, load),
    ]


def begin_by_hand(session: Session, statement: str) -> None:
    if session.get_bind().dialect.name == "sqlite":
        session.connection().exec_driver_sql(statement)


if __name__ == "__main__":
    main(__doc__ or "", prepare, Base.metadata.drop_all)
