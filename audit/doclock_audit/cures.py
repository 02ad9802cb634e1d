"""The cure for each finding: first in plain SQLAlchemy, then with this library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_OURS: Final = "With sa_doclock"


def lost_update(name: str, attributes: str, read: str, *, computed: bool) -> str:
    """Return the cure for an object that was read without a lock and then written.

    :param computed: the new value is computed from the old one.
    """
    lock = f"lock the row when you read it, at {read}: {_get(name)}, or add .with_for_update() to the select()"
    attribute = attributes.partition(", ")[0]
    relative = f"or, for a counter, compute it in the UPDATE: update({name}).values({attribute}={name}.{attribute} + 1); "
    return (
        f"{lock}; {relative if computed else ''}or give {name} a version_id_col, so that the second "
        f"writer fails. {_OURS}: session.get_one_entity({name}, ident, LockOptions.ForUpdate)"
    )


def detail_without_header(header: str, part: str, place: str, *, is_mapped: bool) -> str:
    """Return the cure for a detail that is written without the lock of its header.

    :param is_mapped: the header's class has a relationship of this name.
    """
    needs = "" if is_mapped else f" (class {header} needs the relationship {part})"
    return (
        f"lock the header first, before {place}: {_get(header)}. {_OURS}: "
        f'@document(parts=("{part}",)) on class {header}{needs}, and '
        f"with session.locked_document({header}, ident)"
    )


def lock_order(names: Sequence[str]) -> str:
    """Return the cure for rows of these classes that are locked in different orders."""
    order = ", ".join(dict.fromkeys(names))
    if len(set(names)) > 1:
        return (
            f"lock in one order everywhere: {order}. "
            f"{_OURS}: LockingSession(engine, lock_order=({order})) rejects any other order"
        )
    return (
        f"lock all rows in the order of their keys, before you write the first: select({order})"
        f".where({order}.id.in_(idents)).order_by({order}.id).with_for_update(). "
        f"{_OURS}: session.get_entities({order}, idents, LockOptions.ForUpdate) sorts them"
    )


def stale_after_lock(name: str, locked: str) -> str:
    """Return the cure for an object that keeps its values when its row is locked."""
    return (
        f"add .execution_options(populate_existing=True) at {locked}, or call "
        f"session.refresh({name.lower()}, with_for_update=True). "
        f"{_OURS}: session.get_one_entity({name}, ident, LockOptions.ForUpdate)"
    )


def lock_without_effect() -> str:
    """Return the cure for a lock that never reaches the database."""
    return (
        "lock in a transaction, not in AUTOCOMMIT; on SQLite, begin it with BEGIN IMMEDIATE; on SQL Server, "
        f'add with_hint(table, "WITH (UPDLOCK, ROWLOCK)"). {_OURS}: a LockingSession makes the lock real or '
        "raises LockNotSupported"
    )


def long_hold(locked: str) -> str:
    """Return the cure for a lock that is held while nothing runs."""
    return (
        f"do the slow work before the lock at {locked}, or after session.commit(). "
        f"{_OURS}: session.on_commit(function)"
    )


def idle_transaction(place: str) -> str:
    """Return the cure for a transaction that is open while nothing runs."""
    return (
        f"end the transaction before {place}: session.commit() or session.rollback(), or close() the "
        f"session. {_OURS}: session.on_commit(function)"
    )


def check_then_insert(name: str, columns: str) -> str:
    """Return the cure for a row that is inserted because a search found none.

    :param columns: the columns that the SELECT compares, separated by commas; may be empty.
    """
    if not columns:
        return (
            f"give the only {name} a fixed primary key, and treat an IntegrityError as proof that the row "
            f"exists. {_OURS}: session.get_or_create_entity({name}, ident)"
        )
    values = ", ".join(f'"{one}": ...' for one in columns.split(", "))
    return (
        f"add UniqueConstraint({_quoted(columns)}) to the table of {name}, and treat an IntegrityError "
        f"as proof that the row exists. {_OURS}: with the constraint, "
        f"session.get_or_create_entity({name}, {{{values}}})"
    )


def capacity(read: str) -> str:
    """Return the cure for a row that is inserted because a count was low enough."""
    return (
        f"lock the parent row with with_for_update() before {read}, so that other transactions wait "
        f"before they count. {_OURS}: session.get_one_entity(Parent, ident, LockOptions.ForUpdate)"
    )


def max_plus_one(read: str, columns: str) -> str:
    """Return the cure for a number that is computed from existing ones.

    :param columns: the columns that make the number unique, and the number's own column, separated
        by commas.
    """
    return (
        f"lock the parent row with with_for_update() before {read}; or add "
        f"UniqueConstraint({_quoted(columns)}) and retry after an IntegrityError. "
        f"{_OURS}: session.get_one_entity(Parent, ident, LockOptions.ForUpdate), or "
        "session.lock_key(name) if there is no parent row"
    )


def _quoted(columns: str) -> str:
    return ", ".join(f'"{one}"' for one in columns.split(", "))


def _get(name: str) -> str:
    return f"session.get({name}, ident, with_for_update=True, populate_existing=True)"
