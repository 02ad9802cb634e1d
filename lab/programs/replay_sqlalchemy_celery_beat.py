"""explore() on sqlalchemy-celery-beat: two schedulers start with the same intervals, on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

from doclock_audit import Exploration, explore


def replays(folder: str) -> Iterator[Exploration]:
    """Run the orders in which two callers request the row of one schedule, for each kind that the audit found."""
    models = import_module("sqlalchemy_celery_beat.models")
    schedules = import_module("celery.schedules")
    manager = import_module("sqlalchemy_celery_beat.session").SessionManager()
    address = f"sqlite:///{folder}/beat.db"
    session_factory: Any = manager.session_factory(address)
    of_clock = import_module("sqlalchemy_celery_beat.clockedschedule").clocked
    noon = import_module("datetime").datetime(2030, 1, 1, 12)
    kinds = {
        models.IntervalSchedule: schedules.schedule(60.0),
        models.CrontabSchedule: schedules.crontab(minute="5"),
        models.ClockedSchedule: of_clock(noon),
    }

    def start_over(kind: Any) -> None:
        with manager.session_factory(address) as session:
            session.query(kind).delete()
            session.commit()

    def row(kind: Any) -> None:
        with manager.session_factory(address) as session:
            kind.from_schedule(session, kinds[kind])

    def there_is_one(kind: Any) -> None:
        with manager.session_factory(address) as session:
            assert session.query(kind).count() == 1, "the schedule is there twice"

    session_factory.close()
    for kind in kinds:
        run, clear = partial(row, kind), partial(start_over, kind)
        yield explore(run, run, before=clear, invariant=partial(there_is_one, kind))
