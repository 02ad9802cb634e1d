"""One question to one session: its choices, the question, the statements sent, and the answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from sqlalchemy import Engine
from sqlalchemy.exc import InvalidRequestError

from sa_doclock import DocLockError, LockingSession, LockOptions, UnlockedWriteWarning
from sa_doclock.options import GuardMode
from tests.reliability.fuzz.shapes import AFTERWARDS, ENTITIES, STATES, Shape
from tests.sql.driver import Script

_FOR_UPDATE, _SHARED = LockOptions.ForUpdate, LockOptions.SharedRead


# --------------------------------------------------------------------------------------------------
# The spelling of a lock on each database, written a second time without the library.
#
# :func:`missing` reads the statement sent to a database, and says which part of the lock is absent.

ANY_LOCK = re.compile(
    r"FOR UPDATE|FOR SHARE|SHARE MODE|UPDLOCK|NOLOCK|READPAST|BEGIN IMMEDIATE|READ ONLY|SNAPSHOT"
)
_RC = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
_END = r"( WAIT \d+)?(  -- .*)?$"  # MariaDB has a clause for a lock_timeout


class Asked(NamedTuple):
    """:ivar lock: the base lock.
    :ivar limit: seconds; the tests use only 0.3.
    :ivar earlier: the statements sent earlier in the transaction.
    :ivar received: the statements sent for this lock.
    """

    lock: LockOptions
    no_wait: bool
    skip: bool
    limit: float | None
    header: str
    earlier: Sequence[str]
    received: Sequence[str]

    @property
    def all(self) -> Sequence[str]:
        return [*self.earlier, *self.received]


def missing(database: str, asked: Asked) -> str | None:
    """Return the part of the lock that was not sent; None if it is complete."""
    if asked.lock is LockOptions.None_ or (
        asked.lock is LockOptions.NoLock and database != "mssql"
    ):
        locked = [sql for sql in asked.received if ANY_LOCK.search(sql)]
        return f"no lock, but {locked}" if locked else None
    return _DATABASES[database](asked) or (_no_limit(database, asked) if asked.limit else None)


def _no_limit(database: str, asked: Asked) -> str | None:
    """Return the missing limit, wherever there is a wait to limit."""
    if database == "mssql" and asked.lock is _SHARED and _mssql_snapshot(asked) is None:
        return None
    words = _LIMITS[database]
    return None if any(re.search(words, sql) for sql in asked.received) else words


#: 0.3 seconds.
_LIMITS: Mapping[str, str] = {
    "postgresql": r"set_config\('lock_timeout', .* -- '300(ms)?'",
    "mysql": r"/\*\+ MAX_EXECUTION_TIME\(300\) \*/",
    "mysql-5.7": r"/\*\+ MAX_EXECUTION_TIME\(300\) \*/",
    "mariadb": r"max_statement_time=0\.300 FOR",
    "mssql": r"SET LOCK_TIMEOUT 300",
    "sqlite": r"PRAGMA busy_timeout = 300",
}


def _row_lock(words: Mapping[LockOptions, str], quotes: str) -> Callable[[Asked], str | None]:
    def find(asked: Asked) -> str | None:
        end = words[asked.lock].format(_quoted(asked.header, quotes))
        end += " NOWAIT" if asked.no_wait else " SKIP LOCKED" if asked.skip else ""
        return _a_select(asked.received, rf" {re.escape(end)}{_END}")

    return find


def _postgresql(asked: Asked) -> str | None:
    if asked.lock is LockOptions.SnapshotRead:
        return _in_order(
            asked.all, "(isolation level REPEATABLE_READ)", "SET TRANSACTION READ ONLY"
        )
    return _row_lock({_FOR_UPDATE: "FOR UPDATE OF {}", _SHARED: "FOR SHARE OF {}"}, '""')(asked)


def _innodb(for_update: str, shared: str) -> Callable[[Asked], str | None]:
    find = _row_lock({_FOR_UPDATE: for_update, _SHARED: shared}, "``")

    def innodb(asked: Asked) -> str | None:
        if asked.lock is LockOptions.SnapshotRead:
            return _in_order(asked.all, "START TRANSACTION READ ONLY")
        return _in_order(asked.all, _RC) or find(asked)

    return innodb


def _mssql(asked: Asked) -> str | None:
    snapshot = _mssql_snapshot(asked)
    if asked.lock is LockOptions.SnapshotRead:
        return snapshot
    if asked.lock is _SHARED and not asked.skip and snapshot is None:
        return None
    hint = "NOLOCK" if asked.lock is LockOptions.NoLock else "UPDLOCK, ROWLOCK"
    hint += ", NOWAIT" if asked.no_wait else ", READPAST, READCOMMITTEDLOCK" if asked.skip else ""
    table = re.escape(_quoted(asked.header, "[]"))
    # The session locks a join by the keys of its rows, where the alias has no name.
    return _a_select(
        asked.received, rf"(?<!\w)({table}|\w+\]?(?=.*FORCESEEK)) WITH \({hint}(, FORCESEEK)?\)"
    )


def _mssql_snapshot(asked: Asked) -> str | None:
    return _in_order(asked.all, "SET TRANSACTION ISOLATION LEVEL SNAPSHOT")


def _sqlite(asked: Asked) -> str | None:
    begun = "BEGIN IMMEDIATE" in asked.all and "BEGIN IMMEDIATE" not in asked.received
    waits = asked.no_wait and asked.received and not begun  # the lock's holder never waits
    if waits and "PRAGMA busy_timeout = 0" not in asked.received:
        return "PRAGMA busy_timeout = 0"
    late = r"^(UPDATE \S+ SET .*\n?.*(0 = 1|1 != 1|false))"
    first = r"^BEGIN IMMEDIATE$" if asked.lock is _FOR_UPDATE else r"^BEGIN\b"
    found = any(re.search(rf"{first}|{late}", sql) for sql in asked.all)
    return None if found else first


def _quoted(name: str, quotes: str) -> str:
    return name if re.fullmatch("[a-z_]+", name) else quotes[0] + name + quotes[1]


def _a_select(received: Sequence[str], pattern: str) -> str | None:
    found = any("SELECT" in sql and re.search(pattern, sql) for sql in received)
    return None if found else pattern


def _in_order(received: Sequence[str], *statements: str) -> str | None:
    """Match the patterns one after the other."""
    rest = iter(received)
    return next((sql for sql in statements if sql not in rest), None)


_DATABASES: Mapping[str, Callable[[Asked], str | None]] = {
    "postgresql": _postgresql,
    "mysql": _innodb("FOR UPDATE OF {}", "FOR SHARE OF {}"),
    "mysql-5.7": _innodb("FOR UPDATE", "LOCK IN SHARE MODE"),
    "mariadb": _innodb("FOR UPDATE", "LOCK IN SHARE MODE"),
    "mssql": _mssql,
    "sqlite": _sqlite,
}


# --------------------------------------------------------------------------------------------------
# One question to one session: the call, the statement sent, the result.

MODIFIERS = LockOptions.NoWait | LockOptions.SkipLocked
EVERY = [LockOptions(bits) for bits in range(64)]
QUEUEING = (LockOptions.SharedRead, LockOptions.ForUpdate)
BASES = (LockOptions.None_, LockOptions.NoLock, *QUEUEING, LockOptions.SnapshotRead)
VALID = [
    *BASES,
    *(base | modifier for base in QUEUEING for modifier in LockOptions if modifier in MODIFIERS),
]

GUARDS: tuple[GuardMode, ...] = ("raise", "warn", "off")

#: The polymorphic column, including its name in a subquery.
KINDS = ("kind", "shop_contract_kind", "shop_project_kind", "shop_ticket_kind")

#: The number of questions to each database.
ASKED: Counter[str] = Counter()

Ask = Callable[[LockingSession], Any]
Sessions = tuple[str, Engine, Script]


class Wish(NamedTuple):
    """A lock to ask for, and the state in which to ask.

    :ivar seconds: of the call; ``session_seconds`` is the session's.
    :ivar then: the session's state after ``state``.
    """

    shape: Shape
    lock: LockOptions
    seconds: float | None = None
    session_seconds: float | None = None
    batch: bool = False
    state: str = "no transaction"
    guard: GuardMode = "raise"
    then: str = "no transaction"

    @property
    def states(self) -> list[str]:
        return list(dict.fromkeys((self.state, self.then)))

    @property
    def contradictory(self) -> bool:
        """As DESIGN.md defines it: the session then sends nothing to a database."""
        if self.lock not in VALID:
            return True
        if LockOptions.SkipLocked in self.lock:  # it may wait behind a table lock
            return self.seconds == 0
        queues = self.lock in QUEUEING
        waits_for_nobody = LockOptions.NoWait in self.lock and self.seconds == 0
        return self.seconds is not None and not queues and not waits_for_nobody

    @property
    def no_wait(self) -> bool:
        if self.lock not in QUEUEING:
            return LockOptions.NoWait in self.lock
        seconds = self.session_seconds if self.seconds is None else self.seconds
        return seconds == 0 or self.batch

    @property
    def limit(self) -> float | None:
        """The seconds that the database may wait at most."""
        if LockOptions.SkipLocked in self.lock:
            return self.seconds
        if self.lock not in QUEUEING or self.no_wait:
            return None
        return self.session_seconds if self.seconds is None else self.seconds


class Answer(NamedTuple):
    """The result: an error, or ``lacks``, the part of the lock that the database did not receive.

    :ivar earlier: the statements sent earlier in the transaction.
    """

    error: Exception | None
    received: list[str]
    lacks: str | None = None
    earlier: Sequence[str] = ()


def answer(served: Sessions, wish: Wish, ask: Ask, *, held: bool = False) -> Answer | None:
    """Bring a session into its state, and ask; None if the state is impossible.

    :param held: the state may already hold the lock.
    """
    database, engine, script = served
    script.sent.clear()
    script.values.update(dict.fromkeys(KINDS, wish.shape.kind))
    with LockingSession(
        engine,
        lock_timeout=wish.session_seconds,
        priority="batch" if wish.batch else "interactive",
        guard=wish.guard,
    ) as session:
        try:
            kept = [STATES[name](session, wish.shape) for name in wish.states]
        except (DocLockError, InvalidRequestError, UnlockedWriteWarning):
            return None
        earlier = list(_since_checkout(script.sent))
        sent_before = len(script.sent)
        ASKED[database] += 1
        try:
            ask(session)
        except Exception as error:  # noqa: BLE001  # the tests say which may come
            return Answer(error, script.sent[sent_before:])
        received = script.sent[sent_before:]
        del kept
    if held:
        return Answer(None, received, earlier=earlier)
    base = wish.lock & ~MODIFIERS
    skip = LockOptions.SkipLocked in wish.lock
    asked = Asked(base, wish.no_wait, skip, wish.limit, wish.shape.header, earlier, received)
    return Answer(None, received, missing(database, asked))


def _since_checkout(sent: list[str]) -> list[str]:
    """Return the statements that the connection received in this transaction."""
    back = [number for number, sql in enumerate(sent) if sql == "(back to the pool)"]
    return sent[back[-1] + 1 :] if back else list(sent)


def is_ours(error: Exception | None) -> bool:
    """Return whether a caller must expect this error; subclasses of ValueError are accidents."""
    return isinstance(error, DocLockError) or type(error) in (ValueError, TypeError)


# --------------------------------------------------------------------------------------------------
# The choices of hypothesis: everything, but more often the useful ones.


def some(names: Iterable[str], usual: Iterable[str]) -> st.SearchStrategy[str]:
    """Choose from the usual names as often as from all names."""
    return st.one_of(st.sampled_from(sorted(usual)), st.sampled_from(sorted(names)))


locks = st.one_of(
    st.sampled_from([LockOptions.ForUpdate, LockOptions.SharedRead]),
    st.sampled_from(VALID),
    st.sampled_from(VALID),
    st.sampled_from(EVERY),
)
shapes = st.sampled_from(sorted(ENTITIES))
states = some(STATES, ["no transaction"])
later = st.sampled_from((*["no transaction"] * 6, *AFTERWARDS))
waits = st.sampled_from((None, None, None, 0, 0.3))
batches = st.sampled_from((False, False, False, True))
guards = st.sampled_from(GUARDS)


def the_same_always(examples: int) -> settings:
    """Use this number of examples, the same in every run; ``make soak`` uses more, and different ones."""
    soak = settings()  # the profile that tests/reliability loaded
    soaking = soak.max_examples > examples
    return settings(
        derandomize=not soaking,
        deadline=None,
        database=None,
        max_examples=soak.max_examples if soaking else examples,
        suppress_health_check=list(HealthCheck),
    )
