"""Named locks: whatever the key, the database is asked to take it, or an error of ours comes out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from sa_doclock import DocLockError, LockOptions
from tests.reliability.fuzz.asking import Sessions, Wish, answer
from tests.reliability.fuzz.choices import batches, states, the_same_always, waits
from tests.reliability.fuzz.entities import CLASSES
from tests.reliability.fuzz.junk import JUNK

EXCLUSIVE, SHARED, AT_ONCE = "exclusive", "shared", "at once"
_GET_LOCK = {
    EXCLUSIVE: r"GET_LOCK\(%s, (?!0\))",
    SHARED: r"GET_LOCK\(%s, (?!0\))",
    AT_ONCE: r"GET_LOCK\(%s, 0\)",
}
_WRITE_LOCK = r"^BEGIN IMMEDIATE$|^PRAGMA user_version = |^UPDATE "
WORDS: Mapping[str, Mapping[str, str]] = {
    "postgresql": {
        EXCLUSIVE: r"pg_advisory_xact_lock\(",
        SHARED: r"pg_advisory_xact_lock_shared\(",
        AT_ONCE: r"pg_try_advisory_xact_lock(_shared)?\(",
    },
    "mysql": _GET_LOCK,
    "mysql-5.7": _GET_LOCK,
    "mariadb": _GET_LOCK,
    "mssql": {
        EXCLUSIVE: r"sp_getapplock .*'Exclusive'",
        SHARED: r"sp_getapplock .*'Shared'",
        AT_ONCE: r"sp_getapplock .*@LockTimeout = 0\b",
    },
    "sqlite": dict.fromkeys((EXCLUSIVE, SHARED, AT_ONCE), _WRITE_LOCK),
}

keys = st.one_of(st.text(), st.text(min_size=60), st.sampled_from(JUNK))
shareds = st.one_of(st.booleans(), st.booleans(), st.sampled_from(JUNK))


def _is_wrong(key: object, shared: object) -> bool:
    if not isinstance(key, str) or not isinstance(shared, bool):
        return True
    return not key or "\0" in key or any("\ud800" <= one <= "\udfff" for one in key)


@pytest.mark.slow
@the_same_always(examples=120)
@given(key=keys, shared=shareds, seconds=waits, session_seconds=waits, batch=batches, state=states)
def test_a_key_is_taken_or_an_error_of_ours_comes_out(
    served: Sessions,
    key: Any,
    shared: Any,
    seconds: float | None,
    session_seconds: float | None,
    batch: bool,
    state: str,
) -> None:
    lock = LockOptions.SharedRead if shared is True else LockOptions.ForUpdate
    wish = Wish(CLASSES["plain"], lock, seconds, session_seconds, batch, state)
    found = answer(
        served,
        wish,
        lambda session: session.lock_key(key, shared=shared, lock_timeout=seconds),
        held=True,
    )
    if found is None:
        return
    note(f"received {found.received}, raised {found.error!r}")
    if _is_wrong(key, shared):
        assert type(found.error) in (ValueError, TypeError)
        assert found.received == []
        return
    assert found.error is None or isinstance(found.error, DocLockError)
    if found.error is None:
        manner = AT_ONCE if wish.no_wait else SHARED if shared else EXCLUSIVE
        words = WORDS[served[0]][manner]
        whole = [*found.earlier, *found.received] if served[0] == "sqlite" else found.received
        assert any(re.search(words, sql) for sql in whole)
