"""Litestar with Advanced Alchemy: its session, its repositories, and its autocommit."""

# Litestar reads the annotations of local functions: no "from __future__ import annotations" here.
from collections.abc import Callable
from typing import Any

import pytest

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockNotAvailable,
    LockOptions,
    UnlockedWrite,
)
from tests.frameworks.conftest import Check, Enter
from tests.frameworks.program import (
    ON_TWO_DATABASES,
    Order,
    Program,
    add_line,
    add_ten,
    is_free,
    stored,
)
from tests.support.actors import Actor

pytest.importorskip("litestar", reason="LITESTAR IS NOT TESTED")
pytest.importorskip("advanced_alchemy", reason="ADVANCED ALCHEMY IS NOT TESTED")
from advanced_alchemy.exceptions import RepositoryError
from advanced_alchemy.extensions.litestar import (
    AsyncSessionConfig,
    SQLAlchemyAsyncConfig,
    SQLAlchemyPlugin,
    SQLAlchemySyncConfig,
    SyncSessionConfig,
)
from advanced_alchemy.repository import SQLAlchemySyncRepository
from litestar import Litestar, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery
from litestar.testing import TestClient

pytestmark = ON_TWO_DATABASES
Alice = Actor[LockingSession]
FOR_UPDATE = LockOptions.ForUpdate


class Orders(SQLAlchemySyncRepository[Any]):
    model_type = Order


def answer(_: Request[Any, Any, Any], error: Exception) -> Response[dict[str, str]]:
    status = 503 if isinstance(error, LockNotAvailable) else 409
    return Response({"error": type(error).__name__}, status_code=status)


def new_app(config: Any, *handlers: Any) -> Litestar:
    return Litestar(
        handlers,
        plugins=[SQLAlchemyPlugin(config)],
        exception_handlers={LockNotAvailable: answer, UnlockedWrite: answer},
    )


def sync_config(program: Program, **options: Any) -> SQLAlchemySyncConfig:
    return SQLAlchemySyncConfig(
        engine_instance=program.engine(),
        session_config=SyncSessionConfig(class_=LockingSession),
        **options,
    )


def sync_app(program: Program) -> Litestar:
    @post("/orders/{ident:int}/lines", sync_to_thread=True)
    def post_line(
        db_session: NamedDependency[LockingSession],
        ident: FromPath[int],
        value: FromQuery[int],
        wait: FromQuery[float | None] = None,
    ) -> int:
        with db_session.locked_document(Order, ident, lock_timeout=wait) as order:
            return add_line(order, value)

    @get("/orders/{ident:int}", sync_to_thread=True)
    def show(db_session: NamedDependency[LockingSession], ident: FromPath[int]) -> int:
        order = db_session.get_one_document(Order, ident, FOR_UPDATE)
        order.total = 7  # never saved
        return sum(line.value for line in order.lines)

    return new_app(sync_config(program), post_line, show)


def async_app(program: Program) -> Litestar:
    @post("/orders/{ident:int}/lines")
    async def post_line(
        db_session: NamedDependency[AsyncLockingSession],
        ident: FromPath[int],
        value: FromQuery[int],
    ) -> int:
        async with db_session.locked_document(Order, ident) as order:
            return add_line(order, value)

    config = SQLAlchemyAsyncConfig(
        engine_instance=program.async_engine(),
        session_config=AsyncSessionConfig(class_=AsyncLockingSession),
    )
    return new_app(config, post_line)


def post_line(client: Any) -> int:
    response = client.post("/orders/1/lines", params={"value": 5})
    assert response.status_code == 201, response.text
    return int(response.json())


@pytest.mark.parametrize("make", [sync_app, async_app])
def test_a_request_waits_for_the_holder_and_sees_its_line(
    make: Callable[[Program], Litestar], program: Program, enter_visitor: Enter, check_waits: Check
) -> None:
    app = make(program)
    check_waits(enter_visitor(lambda: TestClient(app)), post_line)


def test_a_lock_that_is_not_granted_is_the_answer_503(program: Program, alice: Alice) -> None:
    alice.does(add_ten)
    with TestClient(sync_app(program)) as client:
        busy = client.post("/orders/1/lines", params={"value": 5, "wait": 0})
    assert (busy.status_code, busy.json()) == (503, {"error": "LockNotAvailable"})


def test_the_end_of_the_request_releases_what_it_locked(program: Program, alice: Alice) -> None:
    with TestClient(sync_app(program)) as client:
        assert client.get("/orders/1").json() == 30
        assert alice.does(is_free)
    assert alice.does(stored) == (30, [10, 20])


@pytest.mark.parametrize(
    ("autocommit", "status"), [(False, 409), (True, 201)], ids=["right", "wrong"]
)
def test_a_handler_that_saves_itself_answers_an_error_of_the_commit(
    program: Program, alice: Alice, autocommit: bool, status: int
) -> None:
    """Advanced Alchemy's autocommit logs the error, and the client is informed that all went well."""

    @post("/orders/{ident:int}", sync_to_thread=True)
    def without_lock(db_session: NamedDependency[LockingSession], ident: FromPath[int]) -> str:
        db_session.get_one(Order, ident).total = 7
        if not autocommit:
            db_session.save_changes()
        return "saved"

    options = {"before_send_handler": "autocommit"} if autocommit else {}
    with TestClient(new_app(sync_config(program, **options), without_lock)) as client:
        assert client.post("/orders/1").status_code == status
    assert alice.does(stored) == (30, [10, 20])


def test_with_for_update_of_a_repository_is_a_lock(program: Program, alice: Alice) -> None:
    with sync_config(program).get_session() as session:
        assert isinstance(session, LockingSession)
        order = Orders(session=session).get(1, with_for_update=True)
        assert dict(session.held_locks) == {(Order, (1,)): FOR_UPDATE}
        assert not alice.does(is_free)
        add_line(order, 5)
        session.save_changes()
    assert alice.does(stored) == (35, [10, 20, 5])


def test_errors_of_a_repository_are_wrapped_unless_it_is_set_not_to(
    program: Program, alice: Alice
) -> None:
    alice.does(add_ten)
    at_once: Any = {"nowait": True}
    with sync_config(program).get_session() as session:
        with pytest.raises(RepositoryError) as caught:
            Orders(session=session).get(1, with_for_update=at_once)
        assert isinstance(caught.value.__cause__, LockNotAvailable)
        session.rollback()
        with pytest.raises(LockNotAvailable):
            Orders(session=session, wrap_exceptions=False).get(1, with_for_update=at_once)
