"""Log records with fields, and events, about locks; no work when nobody listens."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ..errors import DeadlockDetected, LockFailed, LockNotAvailable, SnapshotConflict
from ..events import EventfulSession, ReleasedLock
from ..lock_info import DocumentKey, LockedName, document_label, public_key
from ..options import LockOptions, lock_label
from ..session_ref import session_ref

_log = logging.getLogger("sa_doclock")

CONTENDED: Final = 0.1
"""The seconds from which a lock that was granted counts as one that had to wait."""

_OUTCOMES: Final[Mapping[type[LockFailed], str]] = {
    LockNotAvailable: "not available",
    DeadlockDetected: "deadlock",
    SnapshotConflict: "snapshot conflict",
}


class LockInstrumentation:
    """Reports the locks of one session to its listeners and to the log."""

    def __init__(self, session: EventfulSession) -> None:
        self._session = session_ref(session)
        self._dispatch = session.dispatch

    def report_granted(
        self, documents: Iterable[DocumentKey | LockedName], lock: LockOptions, waited: float
    ) -> None:
        """Report a call for locks that was granted after so many seconds."""
        level = logging.INFO if waited >= CONTENDED else logging.DEBUG
        listeners = self._dispatch.lock_acquired
        if not listeners and not _log.isEnabledFor(level):
            return
        for document in documents:
            fields = _fields(_label_of(document), lock, waited, None, "granted")
            _log.log(level, "%s %s: granted after %.3f s", *_label(fields), waited, extra=fields)
            listeners(self._session(), document, lock, waited)

    def report_failed(self, error: LockFailed, waited: float | None) -> None:
        """Report a lock that the database has refused."""
        if _log.isEnabledFor(logging.WARNING):
            kinds = (text for kind, text in _OUTCOMES.items() if isinstance(error, kind))
            outcome = next(kinds, "failed")  # one of another package's strategy
            _log.warning("%s", error.args[0], extra=log_fields(error, waited, outcome))
        self._dispatch.lock_failed(self._session(), error, waited)

    def has_release_listener(self) -> bool:
        """Return whether a listener or the log takes releases."""
        return bool(self._dispatch.locks_released) or _log.isEnabledFor(logging.DEBUG)

    def report_released(self, released: Sequence[ReleasedLock], outcome: str) -> None:
        """Report locks that are no longer held."""
        if not released:
            return
        if _log.isEnabledFor(logging.DEBUG):
            for document, lock, held in released:
                fields = _fields(_label_of(document), lock, None, held, outcome)
                _log.debug("%s %s: %s after %.3f s", *_label(fields), outcome, held, extra=fields)
        self._dispatch.locks_released(self._session(), released, outcome)


def _label_of(document: DocumentKey | LockedName) -> str:
    entity, identity = document
    return document_label(entity, public_key(identity))


def log_fields(error: LockFailed, waited: float | None, outcome: str) -> dict[str, Any]:
    """Return the fields of a log record about this error."""
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


def _label(fields: Mapping[str, Any]) -> tuple[Any, Any]:
    return fields["document"], fields["lock"]
