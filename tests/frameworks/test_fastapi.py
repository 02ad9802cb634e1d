"""FastAPI: a session by Depends(), in threads and in tasks; and its end before the response."""

# FastAPI reads the annotations of local functions: no "from __future__ import annotations" here.
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal

import httpx
import pytest
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockNotAvailable,
    LockOptions,
    UnlockedWrite,
)
from sa_doclock.testing import two_at_once
from tests.frameworks.conftest import Check, Enter
from tests.frameworks.program import (
    ON_TWO_DATABASES,
    AsgiClient,
    Order,
    Program,
    add_line,
    add_ten,
    is_free,
    stored,
)
from tests.support.actors import Actor

pytest.importorskip("fastapi", reason="FASTAPI IS NOT TESTED")
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse

pytestmark = ON_TWO_DATABASES
Alice = Actor[LockingSession]


def answer(_: Request, error: Exception) -> JSONResponse:
    """Answer a lock that was not granted, and a write without one."""
    status = 503 if isinstance(error, LockNotAvailable) else 409
    return JSONResponse({"error": type(error).__name__}, status)


def new_app() -> FastAPI:
    app = FastAPI()
    app.add_exception_handler(LockNotAvailable, answer)
    app.add_exception_handler(UnlockedWrite, answer)
    return app


@pytest.fixture
def app(program: Program) -> FastAPI:
    factory = sessionmaker(program.engine(), class_=LockingSession)
    app = new_app()

    def new_session() -> Iterator[LockingSession]:
        with factory() as session:
            yield session

    @app.post("/orders/{ident}/lines")
    def post_line(
        ident: int,
        value: int,
        session: Annotated[LockingSession, Depends(new_session)],
        wait: float | None = None,
    ) -> int:
        with session.locked_document(Order, ident, lock_timeout=wait) as order:
            return add_line(order, value)

    @app.get("/orders/{ident}")
    def show(ident: int, session: Annotated[LockingSession, Depends(new_session)]) -> int:
        order = session.get_one_document(Order, ident, LockOptions.ForUpdate)
        order.total = 7  # never saved
        return sum(line.value for line in order.lines)

    return app


@pytest.fixture
def async_app(program: Program) -> FastAPI:
    factory = async_sessionmaker(program.async_engine(), class_=AsyncLockingSession)
    app = new_app()

    async def new_session() -> AsyncIterator[AsyncLockingSession]:
        async with factory() as session:
            yield session

    @app.post("/orders/{ident}/lines")
    async def post_line(
        ident: int, value: int, session: Annotated[AsyncLockingSession, Depends(new_session)]
    ) -> int:
        async with session.locked_document(Order, ident) as order:
            return add_line(order, value)

    return app


def post_line(client: Any) -> int:
    response = client.post("/orders/1/lines", params={"value": 5})
    assert response.status_code == 200, response.text
    return int(response.json())


@pytest.mark.parametrize("name", ["app", "async_app"])
def test_a_request_waits_for_the_holder_and_sees_its_line(
    name: str, request: pytest.FixtureRequest, enter_visitor: Enter, check_waits: Check
) -> None:
    app = request.getfixturevalue(name)
    check_waits(enter_visitor(lambda: AsgiClient(app)), post_line)


@pytest.mark.parametrize("name", ["app", "async_app"])
def test_of_two_requests_at_once_none_is_lost(
    name: str, request: pytest.FixtureRequest, alice: Alice
) -> None:
    transport = httpx.ASGITransport(request.getfixturevalue(name))

    async def post() -> int:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            response = await client.post("/orders/1/lines", params={"value": 5})
        return int(response.json())

    first, second = two_at_once(post, post)
    assert sorted([first.result(), second.result()]) == [35, 40]
    assert alice.does(stored) == (40, [10, 20, 5, 5])


def test_a_lock_that_is_not_granted_is_the_answer_503(app: FastAPI, alice: Alice) -> None:
    alice.does(add_ten)
    with AsgiClient(app) as client:
        busy = client.post("/orders/1/lines", params={"value": 5, "wait": 0})
    assert (busy.status_code, busy.json()) == (503, {"error": "LockNotAvailable"})


def test_the_end_of_the_request_releases_what_it_locked(app: FastAPI, alice: Alice) -> None:
    with AsgiClient(app) as client:
        assert client.get("/orders/1").json() == 30
        assert alice.does(is_free)
    assert alice.does(stored) == (30, [10, 20])


@pytest.mark.parametrize(
    ("scope", "status"), [("function", 409), ("request", 200)], ids=["right", "wrong"]
)
def test_a_dependency_that_saves_does_it_before_the_response(
    program: Program, alice: Alice, scope: Literal["function", "request"], status: int
) -> None:
    """With FastAPI's default scope the client is informed that all went well, and nothing is saved."""
    factory = sessionmaker(program.engine(), class_=LockingSession)
    app = new_app()

    def saved_session() -> Iterator[LockingSession]:
        with factory() as session:
            yield session
            session.save_changes()

    @app.post("/orders/{ident}")
    def without_lock(
        ident: int, session: Annotated[LockingSession, Depends(saved_session, scope=scope)]
    ) -> str:
        session.get_one(Order, ident).total = 7
        return "saved"

    with AsgiClient(app) as client:
        assert client.post("/orders/1").status_code == status
    assert alice.does(stored) == (30, [10, 20])
