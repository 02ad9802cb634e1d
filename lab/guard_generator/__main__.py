"""Run random programs twice, and compare the guard's answer with the database's.

Nothing is committed.  A plain Session runs a program first: after each step, the changed rows show which
documents the step wrote.  Then a LockingSession that holds some of the documents runs it.  It must refuse
the steps that write to another document, and should refuse no other step.

``python -m lab.guard_generator --programs 5000 --seed 1`` prints the results by shape.
"""

from __future__ import annotations

import argparse
import random
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from lab.guard_generator.schemas import DOCS, Key, Schema
from lab.guard_generator.steps import Run, Steps
from sa_doclock import DocLockError, LockingSession, LockOptions, UnlockedWrite
from sa_doclock.options import GuardMode

PROGRAMS_OF_A_SCHEMA = 25


@dataclass
class Found:
    """The counts of several programs."""

    programs: int = 0
    impossible: Counter[str] = field(default_factory=Counter)  # the plain session cannot run them
    writes: int = 0
    refused: int = 0
    needless: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.programs} programs, {self.writes} writes, {self.refused} refused, "
            f"{self.needless.total()} of them needlessly; {len(self.missed)} missed"
        )


@dataclass
class Program:
    """One program on one schema, and the documents that its steps write."""

    engine: sa.Engine
    schema: Schema
    draw: random.Random
    found: Found
    steps: list[tuple[str, Run, set[Key]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ahead = self.draw.choice(["", "", "Line", "Order", *self.schema.kinds])

    def _read_ahead(self, session: Session) -> Any:
        kinds = self.schema.kinds
        entities = [one.entity for one in kinds.values() if self.ahead in (one.name, "Rush")]
        return [session.scalars(sa.select(entity)).all() for entity in entities]

    def try_out(self) -> None:
        steps = Steps(self.schema, self.draw, self.engine.dialect.name)
        with Session(self.engine) as session:
            kept = [self._read_ahead(session)]
            first = before = self.schema.rows(session)
            for _ in range(self.draw.choice([1, 1, 2, 3])):
                shape, run = steps.step()
                try:
                    kept.append(run(session))
                    session.flush()
                except Exception as error:  # noqa: BLE001  # the database, or SQLAlchemy, does not take it
                    self.found.impossible[type(error).__name__] += 1
                    break
                after = self.schema.rows(session)
                written = self.schema.documents_written(before, after)
                self.steps.append((shape, run, written & first["gg_order"].keys()))
                before = after

    def run(self, guard: GuardMode) -> None:
        """Run it in a session that holds some of the documents."""
        held = {self.schema.header(doc) for doc in DOCS if self.draw.random() < 0.6}
        with LockingSession(self.engine, guard=guard) as session:
            kept = [
                session.get_entity(self.schema.Order, key, LockOptions.ForUpdate) for key in held
            ]
            kept.append(self._read_ahead(session))
            for shape, run, documents in self.steps:
                self.found.writes += 1
                try:
                    kept.append(run(session))
                    session.flush()
                except DocLockError as error:
                    self.found.refused += 1
                    if documents <= held:
                        other = (
                            "" if isinstance(error, UnlockedWrite) else f" ({type(error).__name__})"
                        )
                        self.found.needless[
                            shape + ("" if documents else ", no document") + other
                        ] += 1
                    return
                if not documents <= held:
                    self.found.missed.append(
                        f"program {self.found.programs}: {shape} {documents - held}"
                    )
                    return


def run(engine: sa.Engine, seed: int, programs: int, guard: GuardMode = "raise") -> Found:
    """Run this number of programs, and return the results."""
    found, draw = Found(), random.Random(seed)
    while found.programs < programs:
        some = min(PROGRAMS_OF_A_SCHEMA, programs - found.programs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SQLAlchemy's warnings about such models
            _run_some(engine, draw, found, some, guard)
    return found


def _run_some(
    engine: sa.Engine, draw: random.Random, found: Found, programs: int, guard: GuardMode
) -> None:
    schema = Schema(draw)
    with engine.begin() as connection:
        schema.fill(connection)
    try:
        for _ in range(programs):
            found.programs += 1
            # A seed of its own: its choices do not depend on other programs.
            program = Program(engine, schema, random.Random(draw.random()), found)
            program.try_out()
            program.run(guard)
    finally:
        with engine.begin() as connection:
            schema.metadata.drop_all(connection)
        schema.registry.dispose()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", default="sqlite:///guard.db")
    given = parser.parse_args()
    found = run(sa.create_engine(given.url), given.seed, given.programs)
    print(found, dict(found.impossible))
    for shape, number in found.needless.most_common():
        print(f"{number:5} {shape}")
    print(*found.missed, sep="\n")


if __name__ == "__main__":
    main()
