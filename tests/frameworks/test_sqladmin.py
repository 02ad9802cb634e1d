"""SQLAdmin: its forms change declared documents, which a view locks first."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest
from sqlalchemy.ext.asyncio import async_object_session, async_sessionmaker
from sqlalchemy.orm import object_session, sessionmaker

from sa_doclock import AsyncLockingSession, LockingSession, LockOptions
from tests.frameworks.conftest import Enter
from tests.frameworks.program import (
    ON_TWO_DATABASES,
    AsgiClient,
    Line,
    Order,
    Program,
    add_ten,
    save,
    stored,
)
from tests.support.actors import Actor
from tests.support.waits import wait_until_blocked

pytest.importorskip("sqladmin", reason="SQLADMIN IS NOT TESTED")
from sqladmin import Admin, ModelView
from starlette.applications import Starlette

pytestmark = ON_TWO_DATABASES
Alice = Actor[LockingSession]


class DocumentView(ModelView):
    """Locks the document before SQLAdmin changes or deletes a row of it."""

    async def on_model_change(
        self, data: dict[str, Any], model: Any, is_created: bool, request: Any
    ) -> None:
        if not is_created:
            await self.lock(model)

    async def on_model_delete(self, model: Any, request: Any) -> None:
        await self.lock(model)

    async def lock(self, model: Any) -> None:
        key = model.order_id if isinstance(model, Line) else model.id
        if self.is_async:
            session: Any = async_object_session(model)
            await session.get_one_document(Order, key, LockOptions.ForUpdate)
        else:  # the thread of the session waits for this; the event loop must not
            own: Any = object_session(model)
            take = partial(own.get_one_document, Order, key, LockOptions.ForUpdate)
            await anyio.to_thread.run_sync(take)


class OrderAdmin(DocumentView, model=Order):
    form_columns = ("total",)


class LineAdmin(DocumentView, model=Line):
    form_columns = ("value",)


class UnlockedAdmin(ModelView, model=Order):
    form_columns = ("total",)


def sync_maker(program: Program) -> Any:
    return sessionmaker(program.engine(), class_=LockingSession)


def async_maker(program: Program) -> Any:
    return async_sessionmaker(program.async_engine(), class_=AsyncLockingSession)


def new_app(maker: Any, *views: type[ModelView]) -> Starlette:
    app = Starlette()
    admin = Admin(app, session_maker=maker)
    for view in views:
        admin.add_view(view)
    return app


def edit(path: str, **data: str) -> Any:
    return lambda client: client.post(f"/admin/{path}", data=data).status_code


both = pytest.mark.parametrize("make", [sync_maker, async_maker])


@both
@pytest.mark.parametrize(
    ("step", "saved"),
    [
        (edit("order/edit/1", total="7"), (7, [10, 20, 10])),
        (edit("line/edit/1", value="7"), (40, [7, 20, 10])),
    ],
    ids=["header", "part"],
)
def test_an_edit_waits_for_the_holder(
    make: Any, step: Any, saved: Any, program: Program, enter_visitor: Enter, alice: Alice
) -> None:
    app = new_app(make(program), OrderAdmin, LineAdmin)
    visitor = enter_visitor(lambda: AsgiClient(app))
    alice.does(add_ten)
    queued = visitor.starts(step)
    wait_until_blocked(waiter=visitor, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == 302
    assert alice.does(stored) == saved


@both
def test_a_view_that_does_not_lock_shows_the_error(
    make: Any, program: Program, alice: Alice
) -> None:
    app = new_app(make(program), UnlockedAdmin)
    with AsgiClient(app) as client:
        refused = client.post("/admin/order/edit/1", data={"total": "7"})
    assert refused.status_code == 400
    assert "without the ForUpdate lock of its document" in refused.text
    assert alice.does(stored) == (30, [10, 20])
