"""The public programs whose test suites run under the audit, each at one version."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Suite:
    """The tests of one program that use SQLAlchemy on SQLite.

    :ivar repository: ``owner/name`` on GitHub.
    :ivar tag: the tag of the version.
    :ivar needs: packages that pip installs besides the program.
    :ivar tests: arguments for pytest.
    :ivar extras: extras of the program.
    :ivar requirement: the requirement to install if the repository is too large to clone.
    :ivar own: the file in this folder that has the tests.
    """

    repository: str
    tag: str
    tests: tuple[str, ...]
    needs: tuple[str, ...] = ()
    extras: str = ""
    requirement: str = ""
    own: str = ""

    @property
    def version(self) -> str:
        """The number of the version."""
        return self.tag.lstrip("v")


_OF_DATABASE = (
    *("-W", "ignore::DeprecationWarning"),  # from a newer WTForms
    *(
        f"tests/test_{name}.py"
        for name in (*("datastore", "trackable", "confirmable", "change_email", "recovery_codes"),)
    ),
)
SUITES = {
    "apscheduler": Suite(
        *("agronholm/apscheduler", "3.11.2", ("tests/test_jobstores.py", "-k", "sqlalchemy")),
        ("sqlalchemy", "pytest-asyncio", "pytz", "six"),
    ),
    "celery": Suite(
        *("celery/celery", "v5.6.3", ("t/unit/backends/test_database.py",)),
        *(("sqlalchemy", "pytest-subtests", "pytest-timeout", "pytest-celery", "pytest-click"),),
    ),
    "fastapi-users-db-sqlalchemy": Suite(
        *("fastapi-users/fastapi-users-db-sqlalchemy", "v7.0.0", ("tests",)),
        ("fastapi-users", "pytest-asyncio", "aiosqlite", "pytest-mock", "httpx"),
    ),
    "flask-appbuilder": Suite(
        *("dpgaspar/Flask-AppBuilder", "v5.2.2", ("tests/test_sqlalchemy.py",)),
        ("parameterized", "hiro"),
    ),
    "flask-dance": Suite(
        *("singingwolfboy/flask-dance", "v7.1.0", ("tests/consumer/storage/test_sqla.py",)),
        *(
            (
                "pytest-mock",
                "responses",
                "freezegun",
                "flask-sqlalchemy",
                "betamax",
                "flask-login",
                "flask-caching",
            ),
        ),
        extras="[sqla]",
    ),
    "flask-security": Suite(
        *("pallets-eco/flask-security", "5.8.1", _OF_DATABASE),
        ("freezegun", "requests", "zxcvbn", "authlib", "sqlalchemy-utils", "Flask-SQLAlchemy-Lite"),
        extras="[common,mfa,fsqla]",
    ),
    "ihatemoney": Suite(
        *(
            "spiral-project/ihatemoney",
            "7.1.1",
            ("ihatemoney/tests/budget_test.py", "ihatemoney/tests/api_test.py"),
        ),
        ("flask-testing", "pytest-flask"),
    ),
    "jupyterhub": Suite(
        *("jupyterhub/jupyterhub", "5.5.1", ("jupyterhub/tests/test_orm.py",)),
        ("pytest-asyncio", "requests-mock", "beautifulsoup4", "virtualenv", "jsonschema"),
    ),
    # Its repository has 900 MB; our own suite runs its stores.
    "mlflow": Suite(
        *("mlflow/mlflow", "v3.3.0", ("test_mlflow_stores.py",)),
        ("sqlalchemy<2.1", "alembic", "pandas"),
        requirement="mlflow-skinny==3.3.0",
        own="mlflow_stores.py",
    ),
    "optuna": Suite(
        *(
            "optuna/optuna",
            "v4.9.0",
            ("tests/storages_tests/rdb_tests",),
        ),
        ("fakeredis[lua]", "moto", "boto3", "scipy"),
    ),
    "sqlalchemy-celery-beat": Suite(
        *("farahats9/sqlalchemy-celery-beat", "v0.8.4", ("tests/test_schedulers.py",)),
        ("celery<5.6", "sqlalchemy<2.1", "ephem", "pytz"),
    ),
    "sqlalchemy-file": Suite(
        *("jowilf/sqlalchemy-file", "0.6.0", ("tests",)),
        ("apache-libcloud", "fasteners", "Pillow", "sqlmodel", "flask", "fastapi"),
    ),
}
