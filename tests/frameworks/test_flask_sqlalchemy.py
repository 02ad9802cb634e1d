"""Flask-SQLAlchemy: db.session with our methods, its scope, its bind keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_doclock import (
    LockingScopedSession,
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

pytest.importorskip("flask_sqlalchemy", reason="FLASK-SQLALCHEMY IS NOT TESTED")
from flask import Flask, request
from flask_sqlalchemy import SQLAlchemy
from flask_sqlalchemy.session import Session as FlaskSession

pytestmark = ON_TWO_DATABASES
Alice = Actor[LockingSession]
FOR_UPDATE = LockOptions.ForUpdate


class AppSession(FlaskSession, LockingSession):
    pass


class Archive(DeclarativeBase):
    pass


class Page(Archive):
    __tablename__ = "fw_page"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


def with_our_methods(db: SQLAlchemy) -> LockingScopedSession[AppSession]:
    """Replace db.session, as the page says."""
    theirs: Any = db.session
    session = LockingScopedSession(theirs.session_factory, theirs.registry.scopefunc)
    db.session = session
    return session


@contextmanager
def served(program: Program, **config: Any) -> Iterator[tuple[Flask, SQLAlchemy]]:
    db = SQLAlchemy(session_options={"class_": AppSession}, engine_options=program.options)
    app = Flask(__name__)
    app.config.update(config, SQLALCHEMY_DATABASE_URI=program.url)
    db.init_app(app)
    with app.app_context():
        engines = list(db.engines.values())
        program.watch(db.engine)  # not that of another bind key
    yield app, db
    for engine in engines:
        engine.dispose()


@pytest.fixture
def app(program: Program) -> Iterator[Flask]:
    with served(program) as (app, db):
        session = with_our_methods(db)
        app.register_error_handler(LockNotAvailable, lambda _: ({}, 503))
        app.register_error_handler(UnlockedWrite, lambda _: ({}, 409))

        @app.post("/orders/<int:ident>/lines/<int:value>")
        def post_line(ident: int, value: int) -> dict[str, int]:
            wait = 0 if "at_once" in request.args else None
            with session.locked_document(Order, ident, lock_timeout=wait) as order:
                return {"total": add_line(order, value)}

        @app.get("/orders/<int:ident>")
        def show(ident: int) -> dict[str, int]:
            order = session.get_one_document(Order, ident, FOR_UPDATE)
            order.total = 7  # never saved
            return {"total": sum(line.value for line in order.lines)}

        @app.post("/orders/<int:ident>")
        def without_lock(ident: int) -> dict[str, int]:
            db.get_or_404(Order, ident).total = 7
            session.commit()
            return {}

        yield app


def post_line(client: Any) -> int:
    response = client.post("/orders/1/lines/5")
    assert response.status_code == 200, response.text
    return int(response.json["total"])


def test_a_request_waits_for_the_holder_and_sees_its_line(
    app: Any, enter_visitor: Enter, check_waits: Check
) -> None:
    check_waits(enter_visitor(app.test_client), post_line)


def test_errors_are_answers(app: Any, alice: Alice) -> None:
    alice.does(add_ten)
    client = app.test_client()
    assert client.post("/orders/1/lines/5?at_once").status_code == 503
    assert client.post("/orders/2").status_code == 409


def test_the_end_of_the_request_releases_what_it_locked(app: Any, alice: Alice) -> None:
    assert app.test_client().get("/orders/1").json == {"total": 30}
    assert alice.does(is_free)
    assert alice.does(stored) == (30, [10, 20])


def test_a_document_with_a_bind_key_is_locked_in_its_own_database(
    program: Program, tmp_path: Path
) -> None:
    Archive.metadata.info["bind_key"] = "archive"
    url = f"sqlite:///{tmp_path / 'archive.db'}"
    with served(program, SQLALCHEMY_BINDS={"archive": url}) as (app, db), app.app_context():
        Archive.metadata.create_all(db.engines["archive"])
        session = with_our_methods(db)
        session.add(Page(id=1, total=1))
        session.commit()
        with session.locked(Page, 1) as page:
            assert (
                session.connection(bind_arguments={"mapper": Page}).engine is db.engines["archive"]
            )
            assert session.held_locks == {(Page, (1,)): FOR_UPDATE}
            page.total = 2
            with db.engines["archive"].connect() as other:
                other.exec_driver_sql("PRAGMA busy_timeout = 0")
                with pytest.raises(sa.exc.OperationalError, match="locked"):
                    other.execute(sa.update(Page).values(total=3))
        session.remove()


def test_without_flask_sqlalchemys_class_no_session_is_made(program: Program) -> None:
    db = SQLAlchemy(session_options={"class_": LockingSession})
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = program.url
    db.init_app(app)
    with app.app_context(), pytest.raises(TypeError, match="'db'"):
        db.session()
