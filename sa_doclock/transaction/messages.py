"""The words of an error: which document, which lock, which database, and what to do."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy.engine import ExceptionContext

from ..errors import DeadlockDetected, DocLockError, LockFailed, LockNotAvailable
from ..options import LockOptions, lock_label


class Asked(NamedTuple):
    """The lock call under way, for the words of an error."""

    entity: type[Any] | None  # None: a named lock
    ident: Any
    lock: LockOptions
    seconds: float | None
    by_key: bool  # so that it was the lock, if anything, that took its time


def build_error(kind: type[DocLockError], message: str, context: ExceptionContext) -> DocLockError:
    """The error of this kind, with what the driver has raised."""
    if not issubclass(kind, LockFailed):
        return kind(message)
    return kind(
        message,
        statement=context.statement,
        params=context.parameters,
        orig=context.original_exception,
        hide_parameters=context.engine is not None and context.engine.hide_parameters,
    )


def add_document(
    error: DocLockError,
    entity: type[Any] | None,
    ident: Any,
    lock: LockOptions | None,
    database: str,
) -> None:
    """Say first which document, which lock and which database, unless the error says so."""
    if error.entity is None and error.ident is None:
        words = "the transaction" if ident is None else f"named lock {ident!r}"
        if entity is not None:
            words = f"{entity.__name__} " + ("rows" if ident is None else f"{ident}")
        if lock is not None:
            words += f" {lock_label(lock)}"
        error.entity, error.ident, error.lock = entity, ident, lock
        error.args = (f"{words} on {database}: {error.args[0]}",)


def reason(kind: type[DocLockError], asked: Asked | None) -> str:
    """Why the lock was not granted, and what to do."""
    if kind is LockNotAvailable:
        if asked is not None and LockOptions.NoWait in asked.lock:
            return "held by another transaction; try again later, or wait for it"
        if asked is not None and asked.seconds is not None:
            return f"not granted within {asked.seconds:g} s; try again later, or wait longer"
        return "not granted within the server's own limit; roll back and try again later"
    if kind is DeadlockDetected:
        return "chosen as the victim of a deadlock; run the whole transaction again"
    return "changed by another transaction meanwhile; run the whole transaction again"
