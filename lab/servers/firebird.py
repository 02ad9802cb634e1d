"""Firebird 3.0, unpacked from Debian's packages: no root, a separate port, folder and account.

It is not a column of the matrix: the tests of examples/sa-doclock-firebird run on it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from lab.servers import debian
from lab.servers.model import Server, UnavailableError
from lab.servers.process import ServerProcess, free_port, new_folder, run

_PACKAGES = (
    *("firebird3.0-server", "firebird3.0-server-core", "firebird3.0-common"),
    "firebird3.0-utils",
)
_LIBRARIES = ("libfbclient2", "libtommath1", "libib-util")
_START = 30  # seconds
# All lock settings are defaults, except the interval of the deadlock search: 10 s by default.
_SETTINGS = """
RemoteServicePort = {port}
RemoteBindAddress = 127.0.0.1
ServerMode = Super
AuthServer = Srp
UserManager = Srp
DeadlockTimeout = 1
"""
_DATABASES = """
security.db = {folder}/security3.fdb
{{
  RemoteAccess = false
}}
doclock = {folder}/doclock.fdb
"""


def start() -> Server:
    """Start a new server with an empty database ``doclock``."""
    root = debian.unpacked_alone(*_PACKAGES, *_LIBRARIES, licence="IPL-1.0 and IDPL")
    (library,) = root.glob("usr/lib/*/firebird")
    libraries = library.parent
    password, port = secrets.token_hex(8), free_port()
    with new_folder() as folder:
        # The server compares a plugin's path with the loaded path: avoid symbolic links.
        for name in ("plugins", "intl"):
            shutil.copytree(library / "3.0" / name, folder / name, symlinks=False, ignore=_dangling)
        shutil.copy(library / "3.0" / "firebird.msg", folder)
        shutil.copy(root / "etc/firebird/3.0/plugins.conf", folder)
        for name in ("lock", "tmp"):
            (folder / name).mkdir()
        (folder / "firebird.conf").write_text(_SETTINGS.format(port=port), encoding="utf-8")
        (folder / "databases.conf").write_text(_DATABASES.format(folder=folder), encoding="utf-8")
        variables = _variables(folder, libraries)
        version = _version(root, variables)
        security = root / "usr/share/firebird/3.0/security.sql"
        _run_sql(
            root,
            variables,
            f"CREATE DATABASE '{folder}/security3.fdb' USER 'SYSDBA'; COMMIT; IN '{security}'; COMMIT; "
            f"CREATE USER SYSDBA PASSWORD '{password}' USING PLUGIN Srp; COMMIT;",
        )
        _run_sql(
            root,
            variables,
            f"CREATE DATABASE '{folder}/doclock.fdb' USER 'SYSDBA' DEFAULT CHARACTER SET UTF8;",
        )
        environment = [f"{name}={value}" for name, value in variables.items()]
        process = ServerProcess(
            ["env", *environment, str(root / "usr/sbin/firebird")],
            folder,
            stop_signal=signal.SIGKILL,  # the data is thrown away
        )
    try:
        _wait_until_ready(port, process)
    except BaseException:
        process.stop()
        raise
    url = (
        f"firebird+firebird://SYSDBA:{password}@127.0.0.1:{port}/doclock"
        f"?charset=UTF8&fb_client_library={libraries / 'libfbclient.so.2'}"
    )
    return Server("firebird", url, version, "Debian's packages, unpacked", process.stop)


def _dangling(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not (Path(folder) / name).exists()]


def _variables(folder: Path, libraries: Path) -> dict[str, str]:
    return {
        "FIREBIRD": str(folder),
        "FIREBIRD_BOOT_BUILD": "1",  # all files are below FIREBIRD, not in Debian's folders
        "FIREBIRD_LOCK": str(folder / "lock"),
        "FIREBIRD_TMP": str(folder / "tmp"),
        "FIREBIRD_MSG": str(folder),
        "LD_LIBRARY_PATH": str(libraries),
    }


def _run_sql(root: Path, variables: dict[str, str], script: str) -> None:
    """Run SQL in a database that no server has opened yet."""
    done = subprocess.run(
        [str(root / "usr/bin/isql-fb"), "-quiet", "-bail", "-user", "SYSDBA"],
        input=script,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode or "Statement failed" in done.stderr:
        msg = f"isql-fb: {done.stderr.strip() or done.stdout.strip()}"
        raise UnavailableError(msg)


def _version(root: Path, variables: dict[str, str]) -> str:
    words = [f"{name}={value}" for name, value in variables.items()]
    said = run(["env", *words, str(root / "usr/sbin/firebird"), "-z"])
    return f"Firebird {said.rpartition('-V')[2].split()[0]}"


def _wait_until_ready(port: int, process: ServerProcess) -> None:
    """Wait until the port answers; these tests do not install the driver."""
    end = time.monotonic() + _START
    while True:
        process.check_alive()
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError as exc:
            if time.monotonic() > end:
                msg = f"Firebird does not answer: {exc}"
                raise UnavailableError(msg) from exc
            time.sleep(0.1)
        else:
            return
