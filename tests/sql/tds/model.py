"""The state of a session of SQL Server, and the rules by which it refuses.

From "SET TRANSACTION ISOLATION LEVEL", "SET LOCK_TIMEOUT", "SET statements", "ALTER DATABASE SET
options", "Table hints" and "Database Engine events and errors", https://learn.microsoft.com/sql/.

A transaction is at the level at which it began. A later level counts for the statements of the
same transaction, but SNAPSHOT does not: 3951.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Semaphore

from tests.sql.tds.answers import VERSION, Called, Ended, Rows, of_a_table, of_the_server
from tests.sql.tds.errors import FATAL, Refused
from tests.sql.tds.plans import Locked, Table, locked
from tests.sql.tds.tokens import Value

READ_COMMITTED, SNAPSHOT = "READ COMMITTED", "SNAPSHOT"
OFF, ON = 0, 1
_SNAPSHOT_STATES = {0: 3952, 2: 3954, 3: 3956}
_PRIORITIES = {"LOW": -5, "NORMAL": 0, "HIGH": 5}


@dataclass(frozen=True)
class Settings:
    """The settings that a SET changes, put back when a procedure ends."""

    level: str = READ_COMMITTED
    lock_timeout: int = -1
    deadlock_priority: int = 0
    xact_abort: bool = False


@dataclass
class Database:
    """The state that all sessions share, as the test wants it."""

    snapshot: int = ON  # sys.databases.snapshot_isolation_state
    applock: int = 0  # what sp_getapplock returns
    chatter: Sequence[Ended] = ()  # what it says before
    begins_after_3903: bool = False  # what "roll back and begin" then does is not documented
    failures: list[tuple[str, int]] = field(default_factory=list)  # by a mark, once each
    tables: Mapping[str, Table] = field(default_factory=dict)  # those whose locks are followed
    read_committed_snapshot: bool = False
    read_only: bool = False  # a readable secondary, where hints are ignored
    product: Sequence[Value] = (VERSION, 3, None)  # @@VERSION, its EngineEdition, is it Babelfish
    hides_views: bool = False  # from an account that may not see them
    restores: bool = True  # what sp_prepexec has set, at the end of its batch
    periods: dict[str, int] = field(default_factory=dict)
    """The newest period of the rows of each temporal table, by the begin of its transaction."""
    row: threading.Lock | None = None  # one row that UPDLOCK waits for, where a test wants it
    waiters: Semaphore = field(
        default_factory=lambda: Semaphore(0)
    )  # one is released for each wait
    transactions: Iterator[int] = field(default_factory=lambda: count(1000))


@dataclass
class Session:
    """A connection as the server sees it."""

    database: Database
    settings: Settings = Settings()
    begun_at: str | None = None  # the level of its transaction; None: there is none
    transaction: int = 0  # its CURRENT_TRANSACTION_ID()
    savepoints: set[str] = field(default_factory=set)
    locked: set[Locked] = field(default_factory=set)  # by the statements of its transaction
    all_locked: set[Locked] = field(default_factory=set)  # by all of them
    implicit: bool = False
    declared: list[str] = field(default_factory=list)  # parameters of procedures, with their types
    holds_row: bool = False
    used: str = "shop"  # the database, which USE changes
    applock: int | None = None  # what sp_getapplock has returned last

    def begin(self) -> None:
        self.begun_at = self.settings.level
        self.transaction = next(self.database.transactions)
        self.savepoints, self.locked = set(), set()

    def end(self, verb: str) -> None:
        """Commit or roll back.

        :raises Refused: there is nothing to end.
        """
        if self.begun_at is None:
            raise Refused(3902 if verb == "commit" else 3903)
        self.begun_at = None
        if self.holds_row and self.database.row is not None:
            self.holds_row = False
            self.database.row.release()

    def fail_at(self, received: str) -> None:
        """Refuse as the test has asked for, and lose the transaction where the error says so."""
        for at, (mark, number) in enumerate(self.database.failures):
            if mark in received:
                del self.database.failures[at]
                raise Refused(number)

    def procedure(self, text: str, values: Sequence[object] = ()) -> Iterator[Rows | Ended]:
        """Run what sp_executesql and its like run, and put the settings back."""
        kept = self.settings
        try:
            yield from self.batch(text, values)
        finally:
            if self.database.restores:
                self.settings = kept

    def batch(self, text: str, values: Sequence[object] = ()) -> Iterator[Rows | Ended]:
        """Run one statement after the other; yield what each answers."""
        try:
            for statement in _statements(text):
                yield from self._run(statement, values)
        except Refused as refused:
            if refused.number in FATAL or self.settings.xact_abort:
                self.begun_at = None
            raise

    def _run(self, sql: str, values: Sequence[object]) -> Iterator[Rows | Ended]:
        self.fail_at(sql)
        for pattern, rule in _RULES:
            if found := pattern.match(sql):
                yield from rule(self, found)
                return
        if sql.upper().startswith(("SELECT", "UPDATE", "INSERT", "DELETE", "MERGE", "CREATE")):
            yield self._data(sql, values)
            return
        raise NotImplementedError(sql)

    def _data(self, sql: str, values: Sequence[object]) -> Rows | Ended:
        if (received := self._answer_from_state(sql)) is not None:
            return received
        self._access(sql)
        if found := _OUTPUT.search(sql):
            return of_a_table(f"SELECT {found[1]}", values)
        if not sql.startswith("SELECT"):
            self._version(sql)
            return Ended(1)
        return of_a_table(sql, values)

    def _access(self, sql: str) -> None:
        if self.implicit and self.begun_at is None:
            self.begin()
        level = self.settings.level
        if level == SNAPSHOT and self.begun_at not in (None, SNAPSHOT):
            raise Refused(3951)
        if level == SNAPSHOT and self.database.snapshot != ON:
            raise Refused(_SNAPSHOT_STATES[self.database.snapshot])
        if "READPAST" in sql:
            versions = self.database.read_committed_snapshot and "READCOMMITTEDLOCK" not in sql
            if level in (SNAPSHOT, "SERIALIZABLE") or versions:
                raise Refused(650)
        if "UPDLOCK" in sql and self.database.row is not None and not self.holds_row:
            if not self.database.row.acquire(blocking=False):
                self.database.waiters.release()
                self.database.row.acquire()
            self.holds_row = True
        if not self.database.read_only:
            declared = self.declared[-1] if self.declared else ""
            self.locked |= set(locked(sql, self.database.tables, declared))
        self.all_locked |= self.locked

    def _answer_from_state(self, sql: str) -> Rows | None:
        live: dict[str, Value] = {
            "CASE transaction_isolation_level": self.settings.level,
            "CONCAT(DB_NAME()": f"{self.used}.dbo",
            "@@LOCK_TIMEOUT": self.settings.lock_timeout,
            "deadlock_priority": self.settings.deadlock_priority,
            "SELECT @doclock": self.applock,
            "CURRENT_TRANSACTION_ID()": self._transaction_id(),
            "temporal_type": len(self.database.periods),
            "Updateability": "READ_ONLY" if self.database.read_only else "READ_WRITE",
        }
        if "EngineEdition" in sql:
            return Rows(["version", "edition", "babelfish"], [self.database.product])
        if "sys.system_views" in sql and self.database.hides_views:
            return Rows(["name"], [])
        return of_the_server(sql, live, self.database.snapshot)

    def _version(self, sql: str) -> None:
        """Begin a row's period at the time of the transaction ("Temporal tables")."""
        if self.database.read_only:
            raise Refused(3906)
        for table, begun in self.database.periods.items():
            if re.match(rf"(UPDATE|DELETE FROM|INSERT INTO) {table}\b", sql):
                if self.transaction < begun:
                    raise Refused(13535)
                self.database.periods[table] = self.transaction

    def _transaction_id(self) -> int:
        """Outside of a transaction, every statement is one."""
        return self.transaction if self.begun_at else next(self.database.transactions)

    # What the rules below run.

    def _set(self, **settings: str | int) -> Iterator[Ended]:
        self.settings = replace(self.settings, **settings)  # type: ignore[arg-type]
        yield Ended()

    def _level(self, found: re.Match[str]) -> Iterator[Ended]:
        return self._set(level=found[1].upper())

    def _lock_timeout(self, found: re.Match[str]) -> Iterator[Ended]:
        return self._set(lock_timeout=int(found[1]))

    def _priority(self, found: re.Match[str]) -> Iterator[Ended]:
        name = found[1].upper()
        return self._set(deadlock_priority=_PRIORITIES.get(name) or int(name))

    def _implicit(self, found: re.Match[str]) -> Iterator[Ended]:
        self.implicit = found[1].upper() == "ON"
        yield Ended()

    def _begin(self, _: re.Match[str]) -> Iterator[Ended]:
        if self.begun_at is None:
            self.begin()
        yield Ended()

    def _end(self, found: re.Match[str]) -> Iterator[Ended]:
        if self.begun_at is not None or not found["if"]:
            self.end(found["verb"].lower())
        yield Ended()

    def _alter(self, found: re.Match[str]) -> Iterator[Ended]:
        if self.begun_at is not None or self.implicit:
            raise Refused(226)
        self.database.snapshot = ON if found[1] == "ON" else OFF
        yield Ended()

    def _executesql(self, found: re.Match[str]) -> Iterator[Rows | Ended]:
        yield from self.procedure(found[1].replace("''", "'"))
        yield Called()

    def _getapplock(self, _: re.Match[str]) -> Iterator[Ended]:
        held = self.begun_at is not None  # by the transaction, if there is one
        self.applock = self.database.applock if held else -999
        yield from self.database.chatter
        yield Called()

    def _xact_abort(self, found: re.Match[str]) -> Iterator[Ended]:
        return self._set(xact_abort=found[1].upper() == "ON")

    def _savepoint(self, found: re.Match[str]) -> Iterator[Ended]:
        if self.begun_at is None:
            raise Refused(628 if found["save"] else 3903)
        if found["save"]:
            self.savepoints.add(found["name"])
        elif found["name"] not in self.savepoints:
            raise Refused(6401)
        yield Ended()

    def _use(self, found: re.Match[str]) -> Iterator[Ended]:
        self.used = found[1]
        yield Ended()

    def _other(self, _: re.Match[str]) -> Iterator[Ended]:
        yield Ended()

    def _nothing(self, _: re.Match[str]) -> Iterator[Ended]:
        yield from ()


_Rule = Callable[[Session, re.Match[str]], Iterator[Rows | Ended]]
_RULES: list[tuple[re.Pattern[str], _Rule]] = [
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), rule)
    for pattern, rule in (
        (r"SET TRANSACTION ISOLATION LEVEL ([A-Z ]+)$", Session._level),
        (r"SET LOCK_TIMEOUT (-?\d+)$", Session._lock_timeout),
        (r"SET DEADLOCK_PRIORITY (\S+)$", Session._priority),
        (r"SET IMPLICIT_TRANSACTIONS (ON|OFF)$", Session._implicit),
        (r"SET XACT_ABORT (ON|OFF)$", Session._xact_abort),
        (r"USE \[?(\w+)\]?$", Session._use),
        (r"SET \w+ ", Session._other),
        (r"(?P<if>IF @@TRANCOUNT > 0 )?(?P<verb>COMMIT|ROLLBACK)( TRAN\w*)?$", Session._end),
        (r"(IF @@TRANCOUNT = 0 )?BEGIN TRAN(SACTION)?$", Session._begin),
        (r"((?P<save>SAVE)|ROLLBACK) TRANSACTION (?P<name>\w+)$", Session._savepoint),
        (r"ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION (ON|OFF)$", Session._alter),
        (r"EXEC sp_executesql N'(.*)'$", Session._executesql),
        (r"EXEC @doclock = sp_getapplock ", Session._getapplock),
        (r"DECLARE ", Session._nothing),
    )
]
_OUTPUT = re.compile(r"\bOUTPUT (.*?)\s(?:VALUES|SELECT)\b", re.DOTALL)
_SEMICOLON = re.compile(r"((?:'(?:[^']|'')*'|\[[^\]]*\]|[^;'\[])+);?")


def _statements(text: str) -> Iterator[str]:
    for found in _SEMICOLON.finditer(text):
        if statement := found[1].strip():
            yield statement
