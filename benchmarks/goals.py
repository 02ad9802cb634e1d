"""The goals, and why one is missed: the one place where both are written.

The scripts give figures by name; :mod:`benchmarks.lab.report` joins them with what stands here.
A reason is written by a person, after measuring; the report shows it where a goal is missed, or
where its figure is missing and the script has not said why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

AT_MOST: Literal["<="] = "<="
AT_LEAST: Literal[">="] = ">="


class Goal(NamedTuple):
    """One figure, and what it should be."""

    group: str
    what: str
    figure: str  # its name: script, database, ...
    limit: float
    sense: Literal["<=", ">="] = AT_MOST
    unit: str = "x"

    def met_by(self, value: float) -> bool:
        return value <= self.limit if self.sense == AT_MOST else value >= self.limit

    @property
    def wanted(self) -> str:
        return f"{self.sense} {self.limit:g}{' ' + self.unit if self.unit else ''}"


_OVERHEAD = "get_entity + lazy details + save_changes / the same by hand, no latency"
_DOCUMENT = "get_document + save_changes / by hand with selectinload, 5 details, no latency"
_TRIPS = "Round trips, PostgreSQL, default"
_PIPELINED = "Round trips, PostgreSQL, pipeline=True"
_FAR = "Wall time at 1 ms each way, pipeline=True / by hand"
_HOT = "Hot document, 8 threads, 1 ms each way"
_ROLLBACK = "No needless ROLLBACK, wall time at 1 ms each way / by hand"
_STRESS = "Stress fixture / by hand"
_DETAILS = "One changed detail, document of 10,000 / of 10"
_ASYNC = "asyncio, a pool of 20"


def _overhead() -> list[Goal]:
    goals = []
    for operation, limit in (("update", 0.96), ("load", 0.93)):
        for clock in ("cpu", "wall"):
            name = f"overhead.postgresql.entity.{operation}.{clock}"
            goals.append(Goal(_OVERHEAD, f"{operation}, {clock}, PostgreSQL", name, limit))
    for operation in ("update", "load"):
        for clock in ("cpu", "wall"):
            name = f"overhead.worst.{operation}.{clock}"
            goals.append(Goal(_OVERHEAD, f"{operation}, {clock}, the worst of all", name, 1.03))
    for operation, limit in (("update", 0.85), ("load", 0.76)):
        for clock in ("cpu", "wall"):
            name = f"overhead.postgresql.document.{operation}.{clock}"
            goals.append(Goal(_DOCUMENT, f"{operation}, {clock}, PostgreSQL", name, limit))
    return goals


def _round_trips() -> list[Goal]:
    def goal(group: str, what: str, name: str, limit: float) -> Goal:
        return Goal(group, what, f"layers.postgresql.{name}", limit, unit="")

    return [
        goal(_TRIPS, "update", "entity.update.round_trips", 6),
        goal(_TRIPS, "update, held", "entity.update.held", 4),
        goal(_TRIPS, "load", "entity.load.round_trips", 4),
        goal(_TRIPS, "load, held", "entity.load.held", 2),
        goal(_TRIPS, "update, more by lock_timeout", "timed.update.more_round_trips", 0),
        goal(_TRIPS, "load, more by lock_timeout", "timed.load.more_round_trips", 0),
        goal(_PIPELINED, "get_entity, update", "pipeline.update.round_trips", 3),
        goal(_PIPELINED, "get_entity, update, held", "pipeline.update.held", 2),
        goal(_PIPELINED, "get_entity, load", "pipeline.load.round_trips", 3),
        goal(_PIPELINED, "get_document, update", "pipeline_document.update.round_trips", 2),
        goal(_PIPELINED, "get_document, update, held", "pipeline_document.update.held", 1),
        goal(_PIPELINED, "get_document, load", "pipeline_document.load.round_trips", 2),
    ]


def _far() -> list[Goal]:
    goals = [
        Goal(_FAR, f"{what}, {operation}", f"layers.postgresql.{way}.{operation}.far_to_orm", limit)
        for what, way, operation, limit in (
            ("get_entity", "pipeline", "update", 0.61),
            ("get_document", "pipeline_document", "update", 0.46),
            ("get_entity", "pipeline", "load", 0.75),
            ("get_document", "pipeline_document", "load", 0.61),
        )
    ]
    hot = "hot_document.postgresql.pipeline_document"
    goals += [
        Goal(_HOT, "get_document, pipeline=True / ORM by hand", f"{hot}.to_orm", 2.4, AT_LEAST),
        Goal(_HOT, "... / the driver alone, unpipelined", f"{hot}.to_raw", 2.0, AT_LEAST),
    ]
    goals += [
        Goal(_ROLLBACK, f"{operation}, {product}", f"layers.{name}.clean.{operation}.far_to_orm", x)
        for product, name in (("MySQL", "mysql"), ("MariaDB", "mariadb"))
        for operation, x in (("update", 0.87), ("load", 0.79))
    ]
    return goals


_SERVERS = {"PostgreSQL": "postgresql", "MySQL": "mysql", "MariaDB": "mariadb"}


def _stress() -> list[Goal]:
    goals = []
    for threads, size in ((30, "30 x 50"), (64, "64 x 23")):
        for product, name in _SERVERS.items():
            for way in ("get_entity", "get_document"):
                figure = f"stress.{name}.threads_{threads}.{way}"
                what = f"{size}, {way}, {product}"
                goals.append(Goal(_STRESS, f"{what}: wall time", f"{figure}.to_hand", 0.90))
                goals.append(Goal(_STRESS, f"{what}: errors", f"{figure}.errors", 0, unit=""))
    return goals


def _others() -> list[Goal]:
    details, gate = "details.postgresql", "async_gate.postgresql.gate"
    return [
        Goal(_DETAILS, "wall time, PostgreSQL", f"{details}.large_to_small", 1.5),
        Goal(_DETAILS, "log written, PostgreSQL", f"{details}.header_only.log", 0.3, unit="kB"),
        Goal(
            _ASYNC,
            "1000 tasks, errors, no gate",
            "async_gate.postgresql.no_gate.tasks.errors",
            0,
            unit="",
        ),
        Goal(_ASYNC, "1000 tasks, errors, gate", f"{gate}.tasks.errors", 0, unit=""),
        Goal(
            _ASYNC,
            "an unrelated document behind a hot one with 19 waiters, gate",
            f"{gate}.unrelated.milliseconds",
            10,
            unit="ms",
        ),
        Goal(
            _ASYNC,
            "100 tasks with a second session, pool time-outs, gate",
            f"{gate}.second_session.pool_timeouts",
            0,
            unit="",
        ),
        Goal(
            _ASYNC,
            "the same, errors that name the mistake",
            f"{gate}.second_session.named_errors",
            100,
            AT_LEAST,
            unit="",
        ),
    ]


GOALS: tuple[Goal, ...] = (*_overhead(), *_round_trips(), *_far(), *_stress(), *_others())

_FLOOR = (
    "Below the floor of SQLAlchemy 2.1, whose own `Session.get()` has become cheaper: a plain Session "
    "with a prebuilt SELECT, and no library, executes {} of the opcodes of the code by hand. The rest "
    "is what knows the lock until the transaction ends, and refuses what must not follow a failure"
)
_PARTS = (
    "The same statements sent by a plain Session, without a lock's books, take {} of the CPU by hand "
    "on SQLAlchemy 2.1; the other part is bookkeeping. On SQLAlchemy 2.0, by opcodes, it is {}"
)
_OF_ALL = (
    "Of four databases, with and without `@document`: that of a declared one, whose guard is told "
    "of every row that is loaded and written. By hand nothing is guarded"
)
_COMPUTED = "The rest is what the client computes, of which psycopg's pipeline needs more, not less"
_RESET = (
    "{} of the round trips are left, and what client and server compute is the same: a ROLLBACK saves "
    "a round trip, and no CPU"
)

REASONS: Mapping[str, str] = {
    "overhead.postgresql.entity.update": _FLOOR.format("0.97"),
    "overhead.postgresql.entity.load": _FLOOR.format("0.94"),
    "overhead.postgresql.document.update": _PARTS.format("0.83", "0.77"),
    "overhead.postgresql.document.load": _PARTS.format("0.72", "0.62"),
    "overhead.worst": _OF_ALL,
    "layers.postgresql.pipeline.update": f"3 round trips of 6 are 0.5. {_COMPUTED}",
    "layers.postgresql.pipeline.load": (
        "3 round trips of 4 are 0.75 already, before anything is computed: the lazy load and the "
        "ROLLBACK cannot travel with what comes before them. get_document is for that"
    ),
    "layers.postgresql.pipeline_document.update": f"2 round trips of 6 are 0.33. {_COMPUTED}",
    "layers.postgresql.pipeline_document.load": f"2 round trips of 4 are 0.5. {_COMPUTED}",
    "hot_document": (
        "What is held is one round trip and what the client computes meanwhile, for 8 threads under "
        "one GIL; between runs it goes from 2.3 to 2.5 and from 1.75 to 2.0"
    ),
    "layers.mysql.clean.update": _RESET.format("5 of 6, 0.83"),
    "layers.mysql.clean.load": _RESET.format("3 of 4, 0.75"),
    "layers.mariadb.clean.update": _RESET.format("5 of 6, 0.83"),
    "layers.mariadb.clean.load": _RESET.format("3 of 4, 0.75"),
    "stress": (
        "There is no latency to save, and one process computes on one core at a time: the ratio is "
        "that of the client's CPU. The fixture's documents are declared and guarded; by hand nothing is"
    ),
}
"""Reasons for missed goals, by the name of the figure or of a group of figures."""
