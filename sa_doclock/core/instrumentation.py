"""Log records with fields, and events; no work without listeners."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

from ..errors import (
    DocLockError,
    LockFailed,
    LockNotAvailable,
    LockOrderViolation,
    UnlockedWrite,
    outcome_of,
)
from ..events import EventfulSession, ReleasedLock, listened
from ..keys import DocumentKey, LockedName, document_label, public_key
from ..options import LockOptions, lock_label

_log = logging.getLogger("sa_doclock")

CONTENDED: Final = 0.1
"""The seconds after which a granted lock counts as one that had to wait."""

SHORT_LIMIT: Final = 1.0
"""The longest limit of a wait, in seconds, whose end the program is assumed to expect."""


def report_granted(
    session: EventfulSession,
    documents: Iterable[DocumentKey | LockedName],
    lock: LockOptions,
    waited: float,
) -> None:
    """Report a lock call that was granted after this many seconds."""
    level = logging.INFO if waited >= CONTENDED else logging.DEBUG
    listeners = session.dispatch.lock_acquired if "lock_acquired" in listened else None
    if not listeners and not _log.isEnabledFor(level):
        return
    for document in documents:
        fields = _fields(_label_of(document), lock, waited, None, "granted")
        _log.log(level, "%(document)s %(lock)s: granted after %(waited).3f s", fields, extra=fields)
        if listeners is not None:
            listeners(session, document, lock, waited)


def report_failed(
    session: EventfulSession, error: LockFailed, waited: float | None, seconds: float | None = None
) -> None:
    """Report a lock that the database refused.

    :param seconds: the program's limit of the wait, or None.
    """
    lock = error.lock or LockOptions.None_
    at_once = LockOptions.NoWait in lock or LockOptions.SkipLocked in lock
    only_tried = at_once or (seconds is not None and seconds <= SHORT_LIMIT)
    expected = isinstance(error, LockNotAvailable) and only_tried
    level = logging.INFO if expected else logging.WARNING
    if _log.isEnabledFor(level):
        fields = log_fields(error, waited, outcome_of(error).replace("_", " "))
        _log.log(level, "%s", error.args[0], extra=fields)
    session.dispatch.lock_failed(session, error, waited)


def report_order_violation(error: LockOrderViolation) -> None:
    """Report a lock that violates the lock order."""
    _log.warning("%s", error.args[0], extra=log_fields(error, None, "order violation"))


def report_unlocked_write(session: EventfulSession, error: UnlockedWrite, line: str | None) -> None:
    """Report a write without the lock, which the session permits."""
    if _log.isEnabledFor(logging.WARNING):
        fields = {**log_fields(error, None, "unlocked write"), "line": line}
        _log.warning("%s", error.args[0], extra=fields)
    session.dispatch.unlocked_write(session, error, line)


def report_released(
    session: EventfulSession, released: Sequence[ReleasedLock], outcome: str
) -> None:
    """Report locks that are no longer held."""
    if _log.isEnabledFor(logging.DEBUG):
        for document, lock, held in released:
            fields = _fields(_label_of(document), lock, None, held, outcome)
            text = "%(document)s %(lock)s: %(outcome)s after %(held).3f s"
            _log.debug(text, fields, extra=fields)
    if "locks_released" in listened:
        session.dispatch.locks_released(session, released, outcome)


def reports_released() -> bool:
    """Return whether anything listens for the release of locks."""
    return "locks_released" in listened or _log.isEnabledFor(logging.DEBUG)


def _label_of(document: DocumentKey | LockedName) -> str:
    entity, identity = document
    return document_label(entity, public_key(identity))


def log_fields(error: BaseException, waited: float | None, outcome: str) -> dict[str, Any]:
    """Return the fields of a log record about this error; only our own errors name a document."""
    if not isinstance(error, DocLockError):
        return _fields(None, None, waited, None, outcome)
    named = error.entity is not None or error.ident is not None
    document = document_label(error.entity, error.ident) if named else None
    return _fields(document, error.lock, waited, None, outcome)


def _fields(
    document: str | None,
    lock: LockOptions | None,
    waited: float | None,
    held: float | None,
    outcome: str,
) -> dict[str, Any]:
    label = None if lock is None else lock_label(lock)
    return {"document": document, "lock": label, "waited": waited, "held": held, "outcome": outcome}
