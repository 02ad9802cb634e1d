"""The holders of a lock that was not granted, asked of the server over a second connection."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine, Table

from ..core.documents import mapper_of, own_table, root_of
from ..core.statements import MAX_PARAMETERS
from ..core.transaction import LockCall, LockContext, SessionPart, connections_of
from ..dialects import (
    LockMonitoring,
    describe_connections,
    schema_translation,
    side_connection,
    strategy_for,
)
from ..errors import LockFailed, LockNotAvailable
from ..keys import Identity
from ..options import LockOptions, base_of
from ..wait_info import LockConnection, short_statement
from .shared_query import SharedQueries

_log = logging.getLogger("sa_doclock")
_LISTED = 3

Keys = Sequence[Identity]


class Diagnosis(SessionPart):
    """Adds the blockers to errors of ``LockingSession(diagnose=True)``."""

    def __init__(self, state: LockContext) -> None:
        self._session = state.session

    def settled(self, call: LockCall, error: LockFailed | None) -> None:
        """See :class:`SessionPart`: the error stays as it is if nobody can be asked.

        By now this session waits for nobody.
        """
        if not isinstance(error, LockNotAvailable) or error.entity is None:  # a named lock
            return
        lock = error.lock or LockOptions.ForUpdate
        try:
            blockers = self._find_blockers(error.entity, call.request.keys, lock, call.engine)
            text = blockers_text(blockers, error.hide_parameters)
        except Exception as failure:  # noqa: BLE001  # the error that there is matters more
            _log.debug("diagnose: the server did not tell who holds the lock: %r", failure)
            return
        if blockers:
            error.blockers = blockers
            error.add_details(f"; {text}")

    def _find_blockers(
        self, entity: type[Any], keys: Keys, lock: LockOptions, engine: Engine | None
    ) -> tuple[LockConnection, ...]:
        """Return who keeps this lock from being granted.

        :param keys: of the rows that were asked for; empty where they are not known.
        :param engine: that of the server that has refused.
        """
        mapper = mapper_of(entity)
        bind = engine or self._session().get_bind(mapper)
        strategy = strategy_for(bind)
        monitoring = strategy.monitoring
        if monitoring is None:
            return ()
        ours = [one for one in connections_of(self._session()).all() if one.engine is bind.engine]
        own = {monitoring.connection_id(one) for one in ours}
        header = own_table(mapper)
        keys = _in_order_of(header, root_of(mapper).primary_key, keys)
        shared = base_of(lock) is LockOptions.SharedRead
        options = self._options(bind, ours)
        find = partial(_holders, monitoring, options, header, keys, shared=shared)
        queries: SharedQueries[Connection, Sequence[LockConnection]] = strategy.findings.setdefault(
            SharedQueries, SharedQueries(under_asyncio=bind.dialect.is_async)
        )
        query = (header, repr(keys), shared, repr(options))
        holders = queries.ask(query, find, lambda: side_connection(bind.engine, {})) or ()
        return tuple(one for one in holders if one.connection_id not in own)

    def _options(self, bind: Engine | Connection, ours: Sequence[Connection]) -> Mapping[str, Any]:
        of_session = getattr(self._session(), "execution_options", {})  # of SQLAlchemy 2.1
        of_connections = (one.get_execution_options() for one in reversed(ours))
        return schema_translation(bind.get_execution_options(), of_session, *of_connections)


def _holders(
    monitoring: LockMonitoring,
    options: Mapping[str, Any],
    header: Table,
    keys: Keys,
    connection: Connection,
    *,
    shared: bool,
) -> Sequence[LockConnection]:
    """Return who holds these rows, or may hold them, as the server reports it now."""
    connection.execution_options(schema_translate_map=options.get("schema_translate_map"))
    try:
        found = monitoring.holders(connection, header, keys, shared=shared)
        described = describe_connections(monitoring, connection, found)
    finally:
        connection.rollback()  # the next query sees the server as it is by then
    return [replace(described[one], certain=found[one]) for one in sorted(found)]


def _in_order_of(header: Table, columns: Sequence[Any], keys: Keys) -> Keys:
    """Return keys in the order of the primary key; () if it has other columns, or too many keys."""
    own = list(header.primary_key)
    if set(own) != set(columns) or len(keys) * len(own) > MAX_PARAMETERS:
        return ()
    places = [columns.index(column) for column in own]
    return [tuple(key[place] for place in places) for key in keys]


def blockers_text(blockers: Sequence[LockConnection], hide: bool) -> str:
    """Return the sentence about the blockers for the text of an error.

    :param hide: the engine hides parameters, whose values may be in a statement.
    """
    held = "held by " if all(one.certain for one in blockers) else "perhaps held by "
    listed = [_described(one, hide) for one in blockers[:_LISTED]]
    if len(blockers) > _LISTED:
        listed.append(f"{len(blockers) - _LISTED} more")
    return held + "; ".join(listed)


def _described(connection: LockConnection, hide: bool) -> str:
    statement = None if hide else short_statement(connection)
    return str(connection) if statement is None else f"{connection}: {statement}"
