"""explore() on Flask-Security: two concurrent logins of one user, and two recovery codes, on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

from doclock_audit import Exploration, explore


def replays(folder: str) -> Iterator[Exploration]:
    """Run the orders in which a user logs in twice, and uses two codes.

    login_user() sets login_count + 1; using a code removes it from the list that was read.
    """
    flask, security = import_module("flask"), import_module("flask_security")
    fsqla = import_module("flask_security.models.fsqla_v3")
    db = import_module("flask_sqlalchemy").SQLAlchemy()
    app = flask.Flask(__name__)
    app.config.update(
        SECRET_KEY="secret",
        SECURITY_PASSWORD_SALT="salt",
        SECURITY_TRACKABLE=True,
        SQLALCHEMY_DATABASE_URI=f"sqlite:///{folder}/flask.db",
    )
    db.init_app(app)
    fsqla.FsModels.set_db_info(db)
    role: Any = type("Role", (db.Model, fsqla.FsRoleMixin), {})
    user: Any = type("User", (db.Model, fsqla.FsUserMixin), {})
    _kept: Any = type("WebAuthn", (db.Model, fsqla.FsWebAuthnMixin), {})
    users = security.SQLAlchemyUserDatastore(db, user, role)
    security.Security(app, users)
    with app.app_context():
        db.create_all()
        users.create_user(email="ann@example.org", password="plain")
        db.session.commit()

    def start_over() -> None:
        with app.app_context():
            ann = users.find_user(email="ann@example.org")
            ann.login_count, ann.mf_recovery_codes = 5, ["red", "green", "blue"]
            db.session.commit()

    def login() -> None:
        with app.test_request_context():
            security.login_user(users.find_user(email="ann@example.org"))
            users.commit()

    def both_are_counted() -> None:
        with app.app_context():
            count = users.find_user(email="ann@example.org").login_count
            assert count == 5 + 2, "a login is not counted"

    yield explore(login, login, before=start_over, invariant=both_are_counted)

    def use(code: str) -> None:
        with app.app_context():
            ann = users.find_user(email="ann@example.org")
            users.mf_delete_recovery_code(ann, users.mf_get_recovery_codes(ann).index(code))
            users.commit()

    def both_are_used_up() -> None:
        with app.app_context():
            codes = users.mf_get_recovery_codes(users.find_user(email="ann@example.org"))
            assert codes == ["blue"], "a code that was used is valid"

    red, green = partial(use, "red"), partial(use, "green")
    yield explore(red, green, before=start_over, invariant=both_are_used_up)
