"""``python -m lab.proof mssql``: prove a database, and write its page.

It reads the URL from SA_DOCLOCK_TEST_<DATABASE>_URL, so that no process list shows the password.

Exit status: 0 if everything holds, 1 if something does not, 2 if the database is missing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from lab.proof.address import secrets, shown
from lab.proof.blocking import blocking
from lab.proof.column import claims, column
from lab.proof.page import Part, failed, made, page
from lab.proof.questions import questions
from lab.proof.stress import stress
from lab.proof.versions import versions
from lab.servers import url_variable
from lab.servers.model import UnavailableError
from lab.servers.mssql import prepare

NO_DATABASE = 2


class NoDatabase(Exception):
    """The proof cannot run; the text gives the reason."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proof, print and write the page, and return the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    end = given.index("--") if "--" in given else len(given)
    asked = _parser().parse_args(given[:end])
    try:
        url = _url(asked.database)
        engine = _connected(url)
    except NoDatabase as error:
        print(error, file=sys.stderr)
        return NO_DATABASE
    try:
        parts = _parts(asked, engine, url, given[end + 1 :] or _tests_of_claims())
    finally:
        engine.dispose()
    text = page(f"sa_doclock on {shown(engine.url)}", parts, secrets(engine.url))
    asked.results.write_text(text, "utf-8")
    print(text)
    print(f"Written to {asked.results}")
    return int(bool(failed(parts)))


def _parts(
    asked: argparse.Namespace, engine: sa.Engine, url: str, pytest: Sequence[str]
) -> list[Part]:
    return [
        made("Versions", lambda: versions(engine)),
        made("Blocking", lambda: blocking(engine)),
        made("Questions", lambda: questions(engine)),
        made("Stress", lambda: stress(url, asked.threads, asked.iterations)),
        made("Tests", lambda: column(asked.database, pytest)),
    ]


def _tests_of_claims() -> list[str]:
    """Return the test files of all claims that only a real server can prove."""
    return sorted({path for files in claims().values() for path in files})


def _url(database: str) -> str:
    url = os.environ.get(url_variable(database))
    if not url:
        raise NoDatabase(
            f"{url_variable(database)} is not set: give the URL of an empty database, "
            f"as in make {database}-proof URL='{database}+...'"
        )
    return url


def _connected(url: str) -> sa.Engine:
    """Return a connected engine; prepare SQL Server as for its tests."""
    try:
        engine = sa.create_engine(url)
        if engine.dialect.name == "mssql":
            prepare(url)
        with engine.connect():
            return engine
    except (ArgumentError, ImportError, SQLAlchemyError, UnavailableError) as error:
        raise NoDatabase(_without_password(f"no connection: {error}", url)) from None


def _without_password(text: str, url: str) -> str:
    try:
        known = secrets(sa.make_url(url))
    except ArgumentError:  # its text contains the URL
        return "no connection: the URL is no URL of SQLAlchemy"
    for secret in known:
        text = text.replace(secret, "***")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.proof",
        epilog="After -- come arguments of pytest; without any, the tests of the claims of the page run.",
    )
    parser.add_argument("database", help="a column of the test matrix, as mssql")
    parser.add_argument("--results", type=Path, default=Path("proof.md"), help="the file to write")
    parser.add_argument("--threads", type=int, default=30, help="of the stress run")
    parser.add_argument("--iterations", type=int, default=50, help="of each of these threads")
    return parser


if __name__ == "__main__":
    sys.exit(main())
