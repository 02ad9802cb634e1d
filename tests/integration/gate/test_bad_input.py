"""Wrong values for a gate, and wrong arguments of one, are refused."""

from __future__ import annotations

from typing import Any

import pytest

from sa_doclock import AsyncLockingSession, DocumentGate, LockingSession


@pytest.mark.parametrize("wrong", [True, "gate", DocumentGate])
def test_what_is_no_gate_is_refused(wrong: Any) -> None:
    for kind in (LockingSession, AsyncLockingSession):
        with pytest.raises(TypeError, match="gate must be a DocumentGate"):
            kind(gate=wrong)


def test_none_is_no_gate(gate: DocumentGate) -> None:
    assert not LockingSession(gate=None)._context.parts.around_take
    assert LockingSession(gate=gate)._context.parts.around_take


def test_so_is_what_is_no_option() -> None:
    wrong: Any = 1
    with pytest.raises(TypeError, match="next_waits_at_server must be True or False, not 1"):
        DocumentGate(next_waits_at_server=wrong)
    with pytest.raises(ValueError, match='second_session must be "refuse" or "allow", not 1'):
        DocumentGate(second_session=wrong)
