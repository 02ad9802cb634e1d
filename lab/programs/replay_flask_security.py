"""explore() on Flask-Security: two logins of one user at once, on SQLite."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from doclock_audit import Exploration, explore


def replay(folder: str) -> Exploration:
    """Run the orders in which a user logs in twice; login_user() counts with login_count + 1."""
    flask, security = import_module("flask"), import_module("flask_security")
    fsqla = import_module("flask_security.models.fsqla_v2")
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
    users = security.SQLAlchemyUserDatastore(db, user, role)
    security.Security(app, users)
    with app.app_context():
        db.create_all()
        users.create_user(email="ann@example.org", password="plain")
        db.session.commit()

    def start_over() -> None:
        with app.app_context():
            users.find_user(email="ann@example.org").login_count = 5
            db.session.commit()

    def login() -> None:
        with app.test_request_context():
            security.login_user(users.find_user(email="ann@example.org"))
            users.commit()

    def both_are_counted() -> None:
        with app.app_context():
            count = users.find_user(email="ann@example.org").login_count
            assert count == 5 + 2, "a login is not counted"

    return explore(login, login, before=start_over, invariant=both_are_counted)
