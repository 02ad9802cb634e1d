"""The words of an error: which document, which lock, which database, and what to do."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import ExceptionContext

from ..errors import DeadlockDetected, DocLockError, LockFailed, LockNotAvailable
from ..lock_info import document_label
from ..options import LockOptions, lock_label
from .request import LockRequest


def build_error(kind: type[DocLockError], message: str, context: ExceptionContext) -> DocLockError:
    """Return the error of this kind, with what the driver has raised."""
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
    """Put the document, the lock and the database in front of an error that names none yet."""
    if error.entity is None and error.ident is None:
        label = document_label(entity, ident)
        if lock is not None:
            label += f" {lock_label(lock)}"
        error.entity, error.ident, error.lock = entity, ident, lock
        error.args = (f"{label} on {database}: {error.args[0]}",)


def reason(kind: type[DocLockError], request: LockRequest | None) -> str:
    """Return why the lock was not granted, and what to do."""
    if kind is LockNotAvailable:
        if request is not None and LockOptions.NoWait in request.lock:
            return "held by another transaction; try again later, or wait for it"
        if request is not None and request.seconds is not None:
            return f"not granted within {request.seconds:g} s; try again later, or wait longer"
        return "not granted within the server's own limit; roll back and try again later"
    if kind is DeadlockDetected:
        return "chosen as the victim of a deadlock; run the whole transaction again"
    return "changed by another transaction meanwhile; run the whole transaction again"
