"""Nothing is put together for listeners that there are not."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import sa_doclock.core.instrumentation
from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.support.models import Order

pytestmark = pytest.mark.databases("sqlite")

ForUpdate = LockOptions.ForUpdate
Session = LockingSession


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note what is put together to be reported."""
    noted: list[str] = []

    def noting(target: Any, name: str) -> None:
        original = getattr(target, name)

        def note(*args: Any, **how: Any) -> Any:
            noted.append(name)
            return original(*args, **how)

        monkeypatch.setattr(target, name, note)

    noting(sa_doclock.core.instrumentation, "_label_of")
    noting(sa_doclock.core.instrumentation, "_fields")
    return noted


def use(session: Session, other: Session, lock_timeout: float = 0.05) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(LockNotAvailable):
        other.get_entity(Order, 1, ForUpdate, lock_timeout=lock_timeout)
    session.commit()


def test_nothing_is_asked_for_in_silence(
    session: Session, other: Session, asked: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "sa_doclock")
    use(session, other)
    assert asked == []


def test_by_default_only_what_failed_is_logged(
    session: Session, other: Session, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sa_doclock.core.instrumentation, "SHORT_LIMIT", 0.01)
    use(session, other)
    assert asked == ["_fields"]


def test_a_try_that_does_not_wait_is_not_logged_by_default(
    session: Session, other: Session, asked: list[str]
) -> None:
    use(session, other, lock_timeout=0)
    assert asked == []


def test_somebody_who_reads_the_log_learns_of_it(
    session: Session, other: Session, asked: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "sa_doclock")
    use(session, other)
    assert {"_label_of", "_fields"} <= set(asked)
