"""``python -m lab.programs.cost``: the Python instructions that the audit adds to an operation, and its import cost.

The counts are the same on a busy machine; times are not.  They exclude code in C, such as the database.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import count as numbers

from sqlalchemy import Engine, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import StaticPool

from benchmarks.instructions import least
from sa_doclock.testing import audit


class Base(DeclarativeBase):
    pass


class Article(Base):
    __tablename__ = "articles"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]
    title: Mapped[str]


def operations(engine: Engine) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the most common operations, each in a separate transaction."""
    new = numbers(100)

    def insert() -> None:
        with Session(engine) as session:
            session.add(Article(number=0, title="new"))
            session.commit()

    def update() -> None:
        with Session(engine) as session:
            session.scalars(select(Article).where(Article.id == 1)).one().number = next(new)
            session.commit()

    def load_20() -> None:
        with Session(engine) as session:
            session.scalars(select(Article).where(Article.id <= 20)).all()

    def core() -> None:
        with engine.begin() as connection:
            connection.execute(select(Article.id).where(Article.id == 1)).all()

    def tables() -> None:
        other = create_engine("sqlite://")
        Base.metadata.create_all(other)
        other.dispose()

    yield from ((one.__name__, one) for one in (insert, update, load_20, core, tables))


def measure(*, audited: bool) -> dict[str, int]:
    """Return the instructions of each operation."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all(Article(number=0, title="old") for _ in range(20))
        session.commit()
    with audit() if audited else nullcontext():
        return {name: least(operation).all for name, operation in operations(engine)}


def modules(code: str) -> int:
    """Return the number of modules that this line imports, apart from SQLAlchemy and pytest."""
    script = f"import sys, sqlalchemy.orm, pytest; n = len(sys.modules); {code}; print(len(sys.modules) - n)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def main() -> None:
    """Print a table."""
    plain, audited = measure(audited=False), measure(audited=True)
    for name, instructions in plain.items():
        more = audited[name] / instructions
        print(f"{name:<8} {instructions:>7} {audited[name]:>7} {more:.2f}")
    print("modules", modules("from doclock_audit import audit"))


if __name__ == "__main__":
    main()
