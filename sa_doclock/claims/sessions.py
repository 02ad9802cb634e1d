"""The sessions of one claim_each(), one for each transaction, from the user's factory."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Select, inspect

from ..core.documents import own_table, root_of
from ..core.session import context_of
from ..dialects import other_connection, strategy_for, translated_schema
from ..dialects.base import LockStrategy, lock_in_select
from ..errors import LockMisuse, LockNotSupported
from ..features.checkouts import checkouts_of
from ..keys import Identity
from ..options import LockOptions, is_row_lock
from ..scoped_session import is_scoped_session
from ..session import LockingSession
from .query import ClaimQuery
from .report import ClaimReport

_log = logging.getLogger("sa_doclock")

_NOT_VIEWS = "sa_doclock.claims.not_views"


def check_factory(session_factory: object, name: str = "claim_each()") -> None:
    """Raise TypeError for a scoped_session, and for an object that cannot be called.

    :param name: the function that needs it.
    """
    if is_scoped_session(session_factory):
        raise TypeError(
            f"{name} needs sessions of its own, not a scoped_session; give its session_factory"
        )
    if not callable(session_factory):
        raise TypeError(f"{name} needs a session factory, not {session_factory!r}")


@dataclass(eq=False)
class ClaimSessions:
    """Makes sessions and reads keys of candidates; the first read also checks the database."""

    factory: Callable[[], LockingSession]
    query: ClaimQuery
    report: ClaimReport
    checked: bool = False
    process: int | None = None
    """The id of the process that opened the first session."""

    def is_of_parent(self) -> bool:
        """Return whether another process opened the first session: this one is a fork of it."""
        return self.process not in (None, os.getpid())

    def check_process(self) -> None:
        """:raises LockMisuse: this is a fork of the process that opened the first session."""
        if self.is_of_parent():
            raise LockMisuse(
                f"process {self.process} began this {self.query.name} and keeps its rows, and "
                f"process {os.getpid()} is a fork of it: call {self.query.name} again here"
            )

    def open(self) -> LockingSession:
        """Return a new session.

        :raises LockMisuse: in a fork of the process that opened the first one.
        """
        self.check_process()
        self.process = os.getpid()
        session = self.factory()
        if not isinstance(session, LockingSession):
            raise TypeError(
                f"{self.query.name} needs a factory of sessions such as sessionmaker(engine, "
                f"class_=LockingSession); this one makes a {type(session).__name__}"
            )
        if session.in_transaction():
            raise LockMisuse(f"{self.query.name} needs new sessions; this one is in a transaction")
        return session

    def read(self, statement: Select[Any]) -> Sequence[Identity]:
        """Read keys in a separate transaction."""
        with self.open() as session:
            if not self.checked:
                self._check(session)
            with session.begin():
                return [tuple(row) for row in session.execute(statement)]

    def find_taken(self, keys: Sequence[Identity]) -> frozenset[Identity]:
        """Return the keys among these whose rows are checked out."""
        with self.open() as session:
            reader = checkouts_of(context_of(session)).reader
            return reader.find_taken(root_of(self.query.mapper), keys)

    def _check(self, session: LockingSession) -> None:
        bind = session.get_bind(mapper=self.query.mapper)
        strategy = strategy_for(bind)
        _refuse_view(bind, strategy, self.query)
        self.checked = True
        row_lock = lock_in_select(strategy.statements, LockOptions.ForUpdate, None)
        self.report.serialised = not is_row_lock(row_lock)  # one lock covers the whole transaction
        if self.report.serialised:
            of = self.query.name, self.query.mapper.class_.__name__
            _log.info("%s: %s is in a database without row locks: one at a time", *of)


def _refuse_view(bind: Engine | Connection, strategy: LockStrategy, query: ClaimQuery) -> None:
    """Refuse a view; asks the database once per engine and table."""
    table = own_table(query.mapper)
    of_statement = query.statement.get_execution_options()
    schema = translated_schema(table, bind.get_execution_options(), of_statement)
    tables = strategy.findings.setdefault(_NOT_VIEWS, set())
    if (schema, table.name) in tables:
        return
    with bind.connect() if isinstance(bind, Engine) else other_connection(bind) as connection:
        views = _view_names(connection, schema)
    if table.name in views:
        raise LockNotSupported(
            f"{table.name!r} is a view, which has no rows of its own to lock: "
            "claim the rows of the table"
        )
    tables.add((schema, table.name))


def _view_names(connection: Connection, schema: str | None) -> list[str]:
    inspector = inspect(connection)
    views: list[str] = []
    with suppress(NotImplementedError):  # the database has no views, or no materialized ones
        views += inspector.get_view_names(schema=schema)
        views += inspector.get_materialized_view_names(schema=schema)
    return views


def discard_session(session: LockingSession) -> None:
    """Roll back and close; only log an error."""
    try:
        session.close()
    except Exception:  # noqa: BLE001  # the caller has a more important error, or none
        _log.debug("claim_each: a session could not be closed", exc_info=True)
