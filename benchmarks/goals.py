"""The goals, and the reasons for missed ones: the only place that contains them.

The scripts produce figures by name; :mod:`benchmarks.lab.report` joins them with this file.  A person
writes each reason after measuring.  The report shows it for a missed goal, or for a missing figure if the
script gave no reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

AT_MOST: Literal["<="] = "<="
AT_LEAST: Literal[">="] = ">="
PUBLISHED: Literal["none"] = "none"
"""A figure without a goal: the report publishes it, whatever its value."""


class Goal(NamedTuple):
    """One figure, and its target."""

    group: str
    what: str
    figure: str  # its name: script, database, ...
    limit: float
    sense: Literal["<=", ">=", "none"] = AT_MOST
    unit: str = "x"

    def met_by(self, value: float) -> bool:
        if self.sense == PUBLISHED:
            return True
        return value <= self.limit if self.sense == AT_MOST else value >= self.limit

    @property
    def wanted(self) -> str:
        if self.sense == PUBLISHED:
            return "none"
        return f"{self.sense} {self.limit:g}{' ' + self.unit if self.unit else ''}"


_SERVERS = {"PostgreSQL": "postgresql", "MySQL": "mysql", "MariaDB": "mariadb"}

_LINEAR = "3,000 documents in one session / by hand, CPU"
_LATE = "3,000 documents in one session, the last 500 / the first 500, CPU"
_OVERHEAD = "CPU of get_entity + lazy details + save_changes / the same by hand, no latency"
_DOCUMENT = "CPU of get_document + save_changes / by hand with a lazy load, 5 details, no latency"
_OLDER = "CPU of both on SQLAlchemy 2.0, PostgreSQL / by hand on it, no latency"
_OTHERS = "CPU of the same on the other databases / by hand, no latency"
_TIMED = "CPU with a lock_timeout / by hand with SET LOCAL lock_timeout, PostgreSQL, no latency"
_TRIPS = "Round trips, PostgreSQL, default"
_PIPELINED = "Round trips, PostgreSQL, pipeline=True"
_PIPELINED_CPU = "CPU, PostgreSQL, pipeline=True / by hand"
_FAR = "Wall time at 1 ms each way, pipeline=True / by hand"
_HOT = "Hot document, 8 threads, 1 ms each way"
_DEFAULT = "A default engine (REPEATABLE READ)"
_COMBINED = "gate.run(), 32 callers of one document / by hand"
_ROLLBACK = "No needless ROLLBACK, wall time at 1 ms each way / by hand"
_ASYNCIO = "CPU of AsyncLockingSession / AsyncSession by hand, PostgreSQL"
_SESSION = "LockingSession(engine) and close() / Session(engine) and close()"
_STRESS = "Stress fixture / by hand"
_GUARD = "A flush of 1,000 changed parts of one held document, declared / undeclared, CPU"
_QUEUES = "Jobs a second of four processes, PostgreSQL / a job queue's"
_DETAILS = "One changed detail, document of 10,000 / of 10"
_ASYNC = "asyncio, a pool of 20"


def _linear() -> list[Goal]:
    goals = []
    for product, name in (("SQLite", "sqlite"), ("PostgreSQL", "postgresql")):
        for way, limit in (
            *(("entity", 1.25), ("declared", 1.25), ("document", 0.95)),
            *(("changed", 1.25), ("entities", 1.25), ("entity_set", 1.25)),
        ):
            goals.append(
                Goal(_LINEAR, f"{_WAYS[way]}, {product}", f"linear.{name}.{way}.cpu", limit)
            )
        goals += [
            Goal(_LATE, f"{_WAYS[way]}, {product}", f"linear.{name}.{way}.late", 1.1)
            for way in ("entity", "declared", "document", "changed", "claim")
        ]
    return sorted(goals, key=lambda goal: goal.group != _LINEAR)


_WAYS = {
    "entity": "get_entity()",
    "declared": "get_entity() of a declared class",
    "document": "get_document()",
    "changed": "get_document(), a change each, one commit",
    "entities": "get_entities(), all at once",
    "entity_set": "entity_set(), all at once",
    "claim": "claim_each(), a commit each",
}


def _overhead() -> list[Goal]:
    postgresql = [
        (_OVERHEAD, "entity", "update", 1.0),
        (_OVERHEAD, "entity", "load", 1.0),
        (_OVERHEAD, "declared", "update", 1.02),
        (_OVERHEAD, "declared", "load", 1.02),
        (_DOCUMENT, "document_lazy", "update", 0.95),
        (_DOCUMENT, "document_lazy", "load", 0.95),
    ]
    goals = [
        Goal(group, f"{way}, {operation}", f"overhead.postgresql.{way}.{operation}.cpu", limit)
        for group, way, operation, limit in postgresql
    ]
    goals += [
        Goal(_OTHERS, f"{operation}, {product}", f"overhead.{name}.entity.{operation}.cpu", 1.0)
        for product, name in (("MySQL", "mysql"), ("MariaDB", "mariadb"), ("SQLite", "sqlite"))
        for operation in ("update", "load")
    ]
    goals += [
        Goal(
            group, f"floor, {operation}", f"overhead.postgresql.{way}.{operation}.cpu", 0, PUBLISHED
        )
        for group, way in ((_OVERHEAD, "floor"), (_DOCUMENT, "floor_whole"))
        for operation in ("update", "load")
    ]
    goals += [
        Goal(
            _OLDER,
            f"{what}, {operation}",
            f"sqlalchemy_2_0.postgresql.{way}.{operation}.cpu",
            0,
            PUBLISHED,
        )
        for what, way in (
            *(("get_entity", "entity"), ("declared", "declared"), ("floor", "floor")),
            *(("get_document", "document_lazy"), ("floor, whole", "floor_whole")),
        )
        for operation in ("update", "load")
    ]
    groups = _OVERHEAD, _DOCUMENT, _OLDER, _OTHERS
    return sorted(goals, key=lambda goal: groups.index(goal.group))


def _timed() -> list[Goal]:
    return [
        Goal(_TIMED, operation, f"layers.postgresql.timed.{operation}.cpu_to_orm_timed", 1.05)
        for operation in ("update", "load")
    ]


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


def _pipelined_cpu() -> list[Goal]:
    return [
        Goal(_PIPELINED_CPU, f"{what}, {operation}", f"layers.postgresql.{way}.{operation}.{to}", x)
        for what, way, to, operation, x in (
            ("get_entity", "pipeline", "cpu_to_orm", "update", 1.15),
            ("get_entity", "pipeline", "cpu_to_orm", "load", 1.05),
            ("get_document", "pipeline_document", "cpu_to_orm", "update", 1.05),
            ("get_document", "pipeline_document", "cpu_to_orm", "load", 0.90),
        )
    ]


def _far() -> list[Goal]:
    goals = [
        Goal(_FAR, f"{what}, {operation}", f"layers.postgresql.{way}.{operation}.far_to_orm", limit)
        for what, way, operation, limit in (
            ("get_entity", "pipeline", "update", 0.58),
            ("get_document", "pipeline_document", "update", 0.44),
            ("get_entity", "pipeline", "load", 0.77),
            ("get_document", "pipeline_document", "load", 0.58),
        )
    ]
    hot = "hot_document.postgresql.pipeline_document"
    goals.append(Goal(_HOT, "get_document, pipeline=True / ORM", f"{hot}.to_orm", 2.6, AT_LEAST))
    for product, name in (("MySQL", "mysql"), ("MariaDB", "mariadb")):
        for way, what, trips in (
            ("default", "", {"update": 7, "load": 5}),
            ("default_clean", ", skip_redundant_rollback", {"update": 6, "load": 4}),
        ):
            for operation, most in trips.items():
                figure = f"layers.{name}.{way}.{operation}"
                told = f"{operation}{what}, {product}"
                goals.append(
                    Goal(_DEFAULT, f"{told}: round trips", f"{figure}.round_trips", most, unit="")
                )
                if way == "default":
                    wall = f"{told}: wall time at 1 ms / by hand"
                    goals.append(Goal(_DEFAULT, wall, f"{figure}.far_to_orm", 1.2))
    goals += [
        Goal(_ROLLBACK, f"{operation}, {product}", f"layers.{name}.clean.{operation}.far_to_orm", x)
        for product, name in (("MySQL", "mysql"), ("MariaDB", "mariadb"))
        for operation, x in (("update", 0.87), ("load", 0.79))
    ]
    return goals


def _asyncio() -> list[Goal]:
    limits = {"entity": 1.0, "declared": 1.02, "document": 0.95}
    return [
        Goal(
            _ASYNCIO,
            f"{way}, {operation}, {driver}",
            f"async_overhead.postgresql.{driver}.{way}.{operation}.cpu",
            limit,
        )
        for driver in ("psycopg", "asyncpg")
        for way, limit in limits.items()
        for operation in ("update", "load")
    ]


def _sessions() -> list[Goal]:
    return [
        Goal(_SESSION, "CPU", "sessions.sqlite.cpu", 1.4),
        Goal(_SESSION, "memory of one", "sessions.sqlite.memory", 1.5, unit="kB more"),
    ]


def _stress() -> list[Goal]:
    goals = []
    for product, name in _SERVERS.items():
        for way, limit in (("get_entity", 1.05), ("get_document", 1.0)):
            figure = f"stress.{name}.threads_30.{way}"
            what = f"30 x 50, {way}, {product}"
            goals.append(Goal(_STRESS, f"{what}: wall time", f"{figure}.to_hand", limit))
            goals.append(Goal(_STRESS, f"{what}: errors", f"{figure}.errors", 0, unit=""))
    return goals


def _guard() -> list[Goal]:
    return [
        Goal(_GUARD, product, f"guard.{name}.flush.cpu", 1.15)
        for product, name in (("SQLite", "sqlite"), ("PostgreSQL", "postgresql"))
    ]


def _queues() -> list[Goal]:
    return [
        Goal(_QUEUES, f"{what} / {queue}", f"queues.postgresql.{way}.to_{other}", 0, PUBLISHED)
        for what, way, queue, other in (
            ("claim_each()", "claim", "procrastinate", "procrastinate"),
            ("claim_each()", "claim", "pgqueuer, one a fetch", "pgqueuer"),
            ("claim_each(batch=20)", "claim_batch", "procrastinate", "procrastinate"),
            ("claim_each(batch=20)", "claim_batch", "pgqueuer, 20 a fetch", "pgqueuer_batch"),
            ("entity_set(SkipLocked), one", "next", "procrastinate", "procrastinate"),
            ("entity_set(SkipLocked), one", "next", "pgqueuer, one a fetch", "pgqueuer"),
            ("entity_set(SkipLocked), 20", "next_batch", "procrastinate", "procrastinate"),
            ("entity_set(SkipLocked), 20", "next_batch", "pgqueuer, 20 a fetch", "pgqueuer_batch"),
        )
    ]


def _others() -> list[Goal]:
    details, gate = "details.postgresql", "async_gate.postgresql.gate"
    return [
        Goal(_DETAILS, "wall time, PostgreSQL", f"{details}.large_to_small", 1.5),
        Goal(_DETAILS, "log written, PostgreSQL", f"{details}.header_only.log", 0.3, unit="kB"),
        *(
            Goal(
                _ASYNC,
                f"1000 tasks on 5 documents, updates a second, {way} / AsyncSession by hand",
                f"async_gate.postgresql.contended.{way}",
                1.0,
                AT_LEAST,
            )
            for way in ("entity", "declared", "document")
        ),
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


def _combined() -> Iterator[Goal]:
    def ratio(what: str, figure: str, least: float) -> Goal:
        return Goal(_COMBINED, what, f"combined.{figure}", least, AT_LEAST)

    for title, database in _SERVERS.items():
        for where, words in (("far", "1 ms each way"), ("near", "no latency, fsync")):
            of = f"combined.{database}.{where}.run"
            yield ratio(f"updates a second, {title}, {words}", f"{database}.{where}.run.to_orm", 10)
            yield Goal(_COMBINED, f"p99, {title}, {words}", f"{of}.p99", 1)
        yield ratio(f"tasks, {title}, 1 ms each way", f"{database}.tasks.run.to_orm", 9)
        for figure, words in (
            ("refused_0.03", "3 % of the flushes fail"),
            ("raised_0.1", "10 % of the functions raise after a change"),
        ):
            yield ratio(f"{words}, {title}", f"{database}.{figure}.run.to_orm", 1)
        alone = f"combined.{database}.alone.to_block"
        yield Goal(_COMBINED, f"one caller alone / locked_document(), {title}", alone, 1.1)
    far, near = "postgresql.far.run_pipeline", "postgresql.near.run_pipeline"
    yield ratio("the same with pipeline=True, 1 ms each way", f"{far}.to_orm", 20)
    yield ratio("the same with pipeline=True, no latency, fsync", f"{near}.to_orm", 10)
    yield Goal(_COMBINED, "p99 with pipeline=True, 1 ms each way", f"combined.{far}.p99", 1)
    yield ratio("every flush fails, PostgreSQL", "postgresql.refused_1.run.to_orm", 1)
    yield ratio("every function raises after a change", "postgresql.raised_1.run.to_orm", 1)


GOALS: tuple[Goal, ...] = (
    *(*_linear(), *_overhead(), *_timed(), *_round_trips(), *_pipelined_cpu(), *_far()),
    *(*_asyncio(), *_sessions(), *_stress(), *_guard(), *_queues(), *_others(), *_combined()),
)

_FLOOR = (
    "By opcodes a plain Session with a prebuilt SELECT, and no library, executes {} of those of the code "
    "by hand. The rest is what knows the lock until the transaction ends, and refuses what must not "
    "follow a failure; the collection of a locked header is loaded by a SELECT that is built once"
)
_PARTS = (
    "The floor by the same run is at the goal for an update, and above it for a load: to build both "
    "SELECTs once is all that can be saved. By opcodes, four fifths of the rest of an update are the "
    "lock and its end, and a fifth the guard"
)
_GUARDED = (
    "As above, and the guard of a declared class, which is told of every row that is written. By hand "
    "nothing is guarded"
)
_AS_ON_POSTGRESQL = (
    "As on PostgreSQL: the floor, and what knows the lock until the transaction ends"
)
_COMPUTED = "The rest is what the client computes, of which psycopg's pipeline needs more, not less"
_DEFAULT_LEVEL = (
    "5 round trips for a load, 4 by hand, which reads at REPEATABLE READ what it finds: 1.25 by "
    "themselves. Only what the client computes less than by hand brings it down; between runs it goes "
    "from 1.19 to 1.23"
)
_RESET = (
    "{} of the round trips are left, and what client and server compute is the same: a ROLLBACK saves "
    "a round trip, and no CPU"
)

REASONS: Mapping[str, str] = {
    "overhead.postgresql.entity.update": _FLOOR.format("0.97"),
    "overhead.postgresql.entity.load": _FLOOR.format("0.94"),
    "overhead.postgresql.document_lazy": _PARTS,
    "overhead.postgresql.declared": _GUARDED,
    "overhead.mysql": _AS_ON_POSTGRESQL,
    "overhead.mariadb": _AS_ON_POSTGRESQL,
    "overhead.sqlite": _AS_ON_POSTGRESQL,
    "linear": (
        "One session for all: by hand a lock is then one SELECT and no commit, so that what is computed "
        "for each lock weighs more than in a session of its own"
    ),
    "async_overhead": (
        "The same bookkeeping as in a synchronous session; what runs it, SQLAlchemy's greenlet, is on "
        "both sides of the ratio. By hand the details of a whole document come by selectinload()"
    ),
    "async_gate.postgresql.contended": (
        "An event loop computes on one core, whoever waits: the rate is that of the CPU of one update"
    ),
    "sessions.sqlite.cpu": (
        "The options of the constructor, which are checked; all else is made with the first transaction"
    ),
    "guard": (
        "By instructions more than half of it is SQLAlchemy's calls of two listeners for each row, which see what "
        "other listeners have changed meanwhile; what these do is a fifth, and the check of all rows "
        "before the flush another. Between runs it goes from 1.03 to 1.10, on SQLite from 1.08 to 1.15"
    ),
    "layers.postgresql.timed": (
        "The limit is two statements in the round trip of the lock, the second of which restores what the "
        "program had set; by hand it is one statement, and a round trip"
    ),
    "layers.postgresql.pipeline.update": f"3 round trips of 6 are 0.5. {_COMPUTED}",
    "layers.postgresql.pipeline.load": (
        "3 round trips of 4 are 0.75 already, before anything is computed: the lazy load and the "
        "ROLLBACK cannot travel with what comes before them. get_document is for that"
    ),
    "layers.postgresql.pipeline_document.update": f"2 round trips of 6 are 0.33. {_COMPUTED}",
    "layers.postgresql.pipeline_document.load": f"2 round trips of 4 are 0.5. {_COMPUTED}",
    "hot_document": (
        "What is held is one round trip and what the client computes meanwhile, for 8 threads under "
        "one GIL; between runs it goes from 2.4 to 2.9"
    ),
    "layers.mysql.default": _DEFAULT_LEVEL,
    "layers.mariadb.default": _DEFAULT_LEVEL,
    "layers.mysql.clean.update": _RESET.format("5 of 6, 0.83"),
    "layers.mysql.clean.load": _RESET.format("3 of 4, 0.75"),
    "layers.mariadb.clean.update": _RESET.format("5 of 6, 0.83"),
    "layers.mariadb.clean.load": _RESET.format("3 of 4, 0.75"),
    "combined.postgresql.refused_1": "The interval contains the goal: the gate is as fast as by hand",
    "stress": (
        "There is no latency to save, and one process computes on one core at a time: the ratio is "
        "that of the client's CPU. The fixture's documents are declared and guarded; by hand nothing is"
    ),
}
"""Reasons for missed goals, by the name of a figure or of a group of figures."""
