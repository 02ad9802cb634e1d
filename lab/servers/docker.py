"""The services of docker-compose.yml, if a Docker engine with the compose plugin answers."""

from __future__ import annotations

import functools
import shutil
import subprocess
import threading
from pathlib import Path

from lab.running.progress import progress, say
from lab.servers import mssql
from lab.servers.downloads import refuse_proprietary
from lab.servers.model import Server, UnavailableError, no_stop
from lab.servers.mysqld import WITHOUT_TLS
from lab.servers.probe import version_at
from lab.servers.process import run

_REPOSITORY = Path(__file__).resolve().parents[2]
_COMPOSE = ("docker", "compose", "--file", str(_REPOSITORY / "docker-compose.yml"))

#: As published by docker-compose.yml.
URLS = {
    "postgresql": "postgresql+psycopg://doclock:doclock@127.0.0.1:15432/doclock",
    "mysql": f"mysql+pymysql://root:doclock@127.0.0.1:13306/doclock?{WITHOUT_TLS}",
    "mariadb": f"mysql+pymysql://root:doclock@127.0.0.1:13307/doclock?{WITHOUT_TLS}",
    "mssql": "mssql+pyodbc://sa:Doclock-2022@127.0.0.1:11433/doclock"
    "?driver=ODBC+Driver+18+for+SQL+Server&TrustServerCertificate=yes",
}

#: As named in docker-compose.yml, with their licences.
IMAGES = {
    "postgresql": ("postgres:18", "PostgreSQL License"),
    "mysql": ("mysql:9", "GPL-2.0"),
    "mariadb": ("mariadb:11.8", "GPL-2.0"),
    "mssql": ("mcr.microsoft.com/mssql/server:2022-latest", "proprietary"),
}
_one_at_a_time = threading.Lock()


def start(name: str) -> Server:
    """Start the service called ``name``, and wait until its health check passes.

    A service that already runs is used, and keeps running afterwards.
    """
    if reason := why_not(name):
        raise UnavailableError(reason)
    _pull(name)
    was_up = name in run([*_COMPOSE, "ps", "--services", "--status", "running"]).split()
    stop = no_stop if was_up else functools.partial(_remove, name)
    try:
        run([*_COMPOSE, "up", "--detach", "--wait", name])
        if name == "mssql":
            mssql.prepare(URLS[name])
        return Server(name, URLS[name], version_at(name, URLS[name]), "Docker", stop)
    except BaseException:
        stop()
        raise


def why_not(name: str) -> str | None:
    """Return why Docker cannot provide this service here; None if it might."""
    with _one_at_a_time:
        reason = _why_not()
    if reason or name != "mssql":
        return reason
    try:
        refuse_proprietary("SQL Server")
    except UnavailableError as exc:
        return str(exc)
    return None


def _pull(name: str) -> None:
    """Download the image of a service, if it is missing."""
    image, licence = IMAGES[name]
    if _succeeds(["docker", "image", "inspect", image]):
        return
    say(f"Downloading the image {image}, by Docker: some hundred MB, {licence}")
    with progress(lambda: f"the image {image}"):
        run([*_COMPOSE, "pull", "--quiet", name], seconds=1800)


@functools.cache
def _why_not() -> str | None:
    """Return why Docker cannot be used; None if it can."""
    if not shutil.which("docker"):
        return "there is no Docker"
    # The client alone would answer --version; this command needs an engine.
    if not _succeeds(["docker", "info"]):
        return "no Docker engine answers"
    if not _succeeds(["docker", "compose", "version"]):
        return "Docker has no compose plugin"
    return None


def _succeeds(command: list[str]) -> bool:
    try:
        subprocess.run(command, capture_output=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _remove(name: str) -> None:
    run([*_COMPOSE, "rm", "--force", "--stop", "--volumes", name])
