"""An interruption at the end of a transaction: what it has read of check-outs is not believed in the next one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from sa_doclock import CheckedOut, LockingSession, LockOptions
from tests.integration.checkouts.conftest import Factory
from tests.integration.checkouts.models import Order
from tests.support.ctrl_c import UNFINISHED, CtrlC

ForUpdate = LockOptions.ForUpdate
ENDS = [LockingSession.commit, LockingSession.rollback, LockingSession.close]


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_a_document_that_another_has_is_refused(
    factory: Factory, other: LockingSession, end: Callable[[LockingSession], None]
) -> None:
    ctrl_c = CtrlC(
        "sa_doclock.core.transaction.context",
        "sa_doclock.core.transaction.lock_transaction",
        "sa_doclock.features.checkouts",
    )
    interrupted, believed = True, list[object]()
    while interrupted:
        with factory() as session:
            session.get_one_entity(Order, 1, ForUpdate)
            interrupted = ctrl_c.during(lambda: end(session))  # it is called at once
            with suppress(*UNFINISHED):
                session.rollback()
            checkout = other.check_out(Order, 1, "ann")
            other.commit()
            with suppress(CheckedOut):
                session.get_one_entity(Order, 1, ForUpdate)
                believed.append(ctrl_c.raised)
            session.rollback()
        other.check_in(checkout)
        other.commit()
    assert not believed
