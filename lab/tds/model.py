"""The state of a session of SQL Server, the rules by which it refuses, and the resources that a SELECT locks."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Semaphore
from typing import NamedTuple

from lab.tds.answers import (
    FATAL,
    VERSION,
    Called,
    Ended,
    Refused,
    Rows,
    of_a_table,
    of_the_server,
)
from lab.tds.tokens import Value

# --------------------------------------------------------------------------------------------------
# The resources that a SELECT locks, by the rules of "Table hints" about plans.
#
# "The table hints are ignored if the table isn't accessed by the query plan."  "Lock hints ROWLOCK,
# UPDLOCK, AND XLOCK that acquire row-level locks may place locks on index keys rather than the actual
# data rows."  FORCESEEK: "the query optimizer uses only an index seek operation as the access path";
# "If FORCESEEK causes no plan to be found, error 8622 is returned" (hints of tables).
#
# Where the optimizer has a choice, the model makes the one that locks least: an index that covers the
# statement is preferred to the row, and a table that can be left out of a join is left out.
# https://learn.microsoft.com/sql/t-sql/queries/hints-transact-sql-table

ROW = "row"  # the key of the clustered index, or the row of a heap


@dataclass(frozen=True)
class Table:
    """A table with a clustered primary key, unless it is a heap."""

    columns: frozenset[str]
    key: tuple[str, ...]
    indexes: Mapping[str, tuple[tuple[str, ...], frozenset[str]]] = field(default_factory=dict)
    """Nonclustered indexes: their own columns, and those that they INCLUDE."""
    references: Mapping[str, str] = field(default_factory=dict)
    """The tables that trusted foreign keys refer to, by their column."""
    small: bool = False
    """A scan of it costs less than a seek."""
    key_is_indexed: bool = True
    types: Mapping[str, str] = field(default_factory=dict)
    """The types of columns; an index is sought only by a value of the same one, as with a SQL_ collation."""


class Locked(NamedTuple):
    """A resource that received an update lock."""

    table: str
    path: str
    by_scan: bool = False


_SOURCE = re.compile(r"(?:FROM|JOIN) ([\w.]+)(?: AS (\w+))?(?: WITH \(([\w, ]+)\))?")
_EQUAL = re.compile(
    r"\b(\w+)\.(\w+) (?:=|IN) ?\(?(?:CAST\((?:[^()]|\([^()]*\))* AS (\w+)|(@\w+)|(N?'|0x)|[?\d])"
)
_DECLARED = re.compile(r"(@\w+) (\w+)")
_LITERALS = {"'": "varchar", "N'": "nvarchar", "0x": "varbinary"}
_JOIN = re.compile(r"\bON (\w+)\.(\w+) = (\w+)\.(\w+)")


def locked(sql: str, tables: Mapping[str, Table], declared: str = "") -> Iterator[Locked]:
    """Yield the resources that this SELECT locks in the known tables.

    :param declared: its parameters, with their types.
    :raises Refused: there is no such plan.
    """
    sources = _SOURCE.findall(sql)
    for name, alias, hints in sources:
        table, words = tables.get(name), set(hints.split(", "))
        if table is None or "UPDLOCK" not in words:
            continue
        read = frozenset(re.findall(rf"\b{alias or name}\.(\w+)", sql))
        if _is_left_out(alias or name, name, read, sql, tables):
            continue
        sought = {
            column
            for source, column, *value in _EQUAL.findall(sql)
            if source == (alias or name) and _is_sought(table.types.get(column), value, declared)
        }
        yield Locked(name, *_access(table, read, sought, force="FORCESEEK" in words))


def _is_sought(wanted: str | None, value: Sequence[str], declared: str) -> bool:
    """Return whether the value has the column's type, so that the server does not convert the column."""
    cast, parameter, literal = value
    types = {name: kind.lower() for name, kind in _DECLARED.findall(declared)}
    sent = cast.lower() or types.get(parameter) or _LITERALS.get(literal)
    return wanted is None or sent == wanted


def _is_left_out(
    alias: str, name: str, read: frozenset[str], sql: str, tables: Mapping[str, Table]
) -> bool:
    """Return whether a trusted foreign key guarantees the row in the table: join elimination."""
    if read - set(tables[name].key):
        return False
    for one, column, other, key in _JOIN.findall(sql):
        for table, by, target in ((one, column, other), (other, key, one)):
            known = tables.get(table)
            if target == alias and known is not None and known.references.get(by) == name:
                return True
    return False


def _access(
    table: Table, read: frozenset[str], sought: set[str], *, force: bool
) -> tuple[str, bool]:
    """Return the locked index, and whether the query scans all of it."""
    paths = [
        (name, columns, frozenset(columns) | included | set(table.key))
        for name, (columns, included) in table.indexes.items()
    ]
    if table.key_is_indexed:
        paths.append((ROW, table.key, table.columns))
    covering = [(name, columns) for name, columns, has in paths if read <= has]
    seeks = [(name, columns) for name, columns in covering if columns[0] in sought]
    if seeks and (force or not table.small):
        return seeks[0][0], False
    if any(columns[0] in sought for _, columns, _ in paths) and (force or not table.small):
        return ROW, False  # a seek, and the lookup of the row
    if force:
        raise Refused(8622)
    return (covering[0][0] if covering else ROW), True


# --------------------------------------------------------------------------------------------------
# The state of a SQL Server session, and the rules by which it rejects statements.
#
# From "SET TRANSACTION ISOLATION LEVEL", "SET LOCK_TIMEOUT", "SET statements", "ALTER DATABASE SET
# options", "Table hints" and "Database Engine events and errors", https://learn.microsoft.com/sql/.
#
# A transaction keeps the level at which it began. A later level applies to statements of the
# same transaction, except SNAPSHOT: 3951.

READ_COMMITTED, SNAPSHOT = "READ COMMITTED", "SNAPSHOT"
OFF, ON = 0, 1
_SNAPSHOT_STATES = {0: 3952, 2: 3954, 3: 3956}
_PRIORITIES = {"LOW": -5, "NORMAL": 0, "HIGH": 5}


@dataclass(frozen=True)
class Settings:
    """The settings that a SET changes, restored when a procedure ends."""

    level: str = READ_COMMITTED
    lock_timeout: int = -1
    deadlock_priority: int = 0
    xact_abort: bool = False


@dataclass
class Database:
    """The state that all sessions share, as the test sets it."""

    snapshot: int = ON  # sys.databases.snapshot_isolation_state
    applock: int = 0  # the return value of sp_getapplock
    chatter: Sequence[Ended] = ()  # a message before it
    begins_after_3903: bool = False  # the result of "roll back and begin" then is not documented
    failures: list[tuple[str, int]] = field(default_factory=list)  # by marker, once each
    tables: Mapping[str, Table] = field(default_factory=dict)  # whose locks are tracked
    read_committed_snapshot: bool = False
    read_only: bool = False  # a readable secondary, where hints are ignored
    product: Sequence[Value] = (VERSION, 3, None)  # @@VERSION, its EngineEdition, is it Babelfish
    hides_views: bool = False  # for an account without permission to see them
    restores: bool = True  # the settings of sp_prepexec, at the end of its batch
    periods: dict[str, int] = field(default_factory=dict)
    """The newest period of the rows of each temporal table, by the begin of its transaction."""
    row: threading.Lock | None = None  # a row that UPDLOCK waits for, if a test needs it
    waiters: Semaphore = field(default_factory=lambda: Semaphore(0))  # each wait releases one
    transactions: Iterator[int] = field(default_factory=lambda: count(1000))


@dataclass
class Session:
    """A connection, as the server sees it."""

    database: Database
    settings: Settings = Settings()
    begun_at: str | None = None  # the level of its transaction; None without a transaction
    transaction: int = 0  # its CURRENT_TRANSACTION_ID()
    savepoints: set[str] = field(default_factory=set)
    locked: set[Locked] = field(default_factory=set)  # by the statements of its transaction
    all_locked: set[Locked] = field(default_factory=set)  # by all statements
    implicit: bool = False
    declared: list[str] = field(default_factory=list)  # parameters of procedures, with their types
    holds_row: bool = False
    used: str = "shop"  # the database, which USE changes
    applock: int | None = None  # the last return value of sp_getapplock

    def begin(self) -> None:
        self.begun_at = self.settings.level
        self.transaction = next(self.database.transactions)
        self.savepoints, self.locked = set(), set()

    def end(self, verb: str) -> None:
        """Commit or roll back.

        :raises Refused: no transaction is open.
        """
        if self.begun_at is None:
            raise Refused(3902 if verb == "commit" else 3903)
        self.begun_at = None
        if self.holds_row and self.database.row is not None:
            self.holds_row = False
            self.database.row.release()

    def fail_at(self, received: str) -> None:
        """Refuse as the test requested, and lose the transaction if the error ends it."""
        for at, (mark, number) in enumerate(self.database.failures):
            if mark in received:
                del self.database.failures[at]
                raise Refused(number)

    def procedure(self, text: str, values: Sequence[object] = ()) -> Iterator[Rows | Ended]:
        """Run the statement of sp_executesql or a similar procedure, and restore the settings."""
        kept = self.settings
        try:
            yield from self.batch(text, values)
        finally:
            if self.database.restores:
                self.settings = kept

    def batch(self, text: str, values: Sequence[object] = ()) -> Iterator[Rows | Ended]:
        """Run one statement after the other; yield their answers."""
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
        """Start a row's period at the time of the transaction ("Temporal tables")."""
        if self.database.read_only:
            raise Refused(3906)
        for table, begun in self.database.periods.items():
            if re.match(rf"(UPDATE|DELETE FROM|INSERT INTO) {table}\b", sql):
                if self.transaction < begun:
                    raise Refused(13535)
                self.database.periods[table] = self.transaction

    def _transaction_id(self) -> int:
        """Outside a transaction, every statement is a transaction of its own."""
        return self.transaction if self.begun_at else next(self.database.transactions)

    # The actions of the rules below.

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
