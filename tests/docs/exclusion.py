"""The picture of mutual exclusion: one session holds a lock, another asks for the same document.

Measured on real databases.  ``python -m lab.servers postgresql mysql mariadb --for -- python -m
tests.docs.exclusion`` measures again, and writes the figures and the picture; without servers, it draws.
"""

from __future__ import annotations

import json
import os
import runpy
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.docs.pages import ROOT

FOLDER: Final = ROOT / "docs" / "pictures"
FIGURES: Final = FOLDER / "exclusion.json"
SVG: Final = FOLDER / "exclusion.svg"
NAMES: Final[Mapping[str, str]] = {
    "postgresql": "PostgreSQL",
    "mysql": "MySQL",
    "mariadb": "MariaDB",
    "sqlite": "SQLite",
}
LOCKS: Final[Mapping[str, LockOptions]] = {
    "ForUpdate": LockOptions.ForUpdate,
    "NoKey": LockOptions.ForUpdate | LockOptions.NoKey,
    "SharedRead": LockOptions.SharedRead,
    "SnapshotRead": LockOptions.SnapshotRead,
    "None_": LockOptions.None_,
}
"""The locks that a session asks for; another one holds any of these but the last."""

Matrix = Mapping[str, Mapping[str, bool]]
"""By the held lock and the requested lock: whether the request has to wait."""


class Base(DeclarativeBase):
    """The table of the measurement."""


class Exclusive(Base):
    """A document without details."""

    __tablename__ = "lk_exclusion"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


def measure(engine: sa.Engine) -> Matrix:
    """Return which lock waits for which in this database; the table exists and is empty."""
    with LockingSession(engine) as session:
        session.add(Exclusive(id=1))
        session.commit()
    return {
        held: {asked: _waits(engine, held, asked) for asked in LOCKS}
        for held in LOCKS
        if held != "None_"
    }


def _waits(engine: sa.Engine, held: str, asked: str) -> bool:
    lock = LOCKS[asked]
    if lock & (LockOptions.ForUpdate | LockOptions.SharedRead):
        lock |= LockOptions.NoWait  # a session that would wait fails
    with LockingSession(engine) as holder, LockingSession(engine) as other:
        holder.get_one_entity(Exclusive, 1, LOCKS[held])
        try:
            other.get_one_entity(Exclusive, 1, lock)
        except LockNotAvailable:
            return True
    return False


def figures() -> Mapping[str, Matrix]:
    """Return the measured figures, by database."""
    found: Mapping[str, Matrix] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return found


def draw() -> str:
    """Return the picture."""
    document = runpy.run_path(str(FOLDER / "timeline.py"))["document"]
    shapes: list[str] = []
    reported: list[str] = []
    top = 0
    for names, matrix in _groups():
        title = ", ".join(names)
        shapes += _grid(top, title, matrix)
        reported += [
            f"{title}, {held} is held: {_words(answers)}." for held, answers in matrix.items()
        ]
        top += 178
    svg: str = document(
        "One session holds a lock; another one asks for the same document",
        " ".join(reported),
        top,
        shapes,
    )
    return svg


def _words(answers: Mapping[str, bool]) -> str:
    return ", ".join(
        f"{asked} {'waits' if waits else 'does not wait'}" for asked, waits in answers.items()
    )


def _groups() -> Iterator[tuple[list[str], Matrix]]:
    """Yield the databases with the same matrix together."""
    left = dict(figures())
    while left:
        first = next(iter(left.values()))
        same = [name for name, matrix in left.items() if matrix == first]
        yield [NAMES[name] for name in same], first
        for name in same:
            del left[name]


def _grid(top: int, title: str, matrix: Matrix) -> Iterator[str]:
    first, width, height = 100, 60, 28
    yield f'  <text class="title" x="4" y="{top + 16}">{title}</text>'
    yield f'  <text x="4" y="{top + 40}">held | asked</text>'
    for column, asked in enumerate(LOCKS):
        x = first + column * width + width / 2
        name = asked.removesuffix("Read")
        yield (
            f'  <text x="{x:g}" y="{top + 40}" text-anchor="middle" font-size="11.5">{name}</text>'
        )
    for row, (held, answers) in enumerate(matrix.items()):
        y = top + 48 + row * height
        yield f'  <text x="4" y="{y + 18}">{held}</text>'
        for column, waits in enumerate(answers.values()):
            kind, text = ("waits", "waits") if waits else ("good", "\N{EN DASH}")
            x = first + column * width + 2
            yield (
                f'  <rect class="{kind}" x="{x}" y="{y}" width="{width - 4}" height="{height - 4}" rx="4"/>'
                f'<text x="{x + width / 2 - 2:g}" y="{y + 17}" text-anchor="middle">{text}</text>'
            )


def main() -> None:
    """Measure on the databases that the environment names, and on SQLite; write both files."""
    found = dict(figures()) if FIGURES.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        urls = {name: os.environ.get(f"SA_DOCLOCK_TEST_{name.upper()}_URL") for name in NAMES}
        urls["sqlite"] = f"sqlite:///{Path(folder) / 'exclusion.db'}"
        for name, url in urls.items():
            if url is None:
                continue
            engine = sa.create_engine(url)
            Base.metadata.drop_all(engine)
            Base.metadata.create_all(engine)
            found[name] = measure(engine)
            Base.metadata.drop_all(engine)
            engine.dispose()
    ordered = {name: found[name] for name in NAMES if name in found}
    FIGURES.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")
    SVG.write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
