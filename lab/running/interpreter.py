"""The Python of .venv: a .venv of another version than PYTHON is rebuilt; a PYTHON that is too old is refused.

``python interpreter.py FOLDER [chosen]`` prints only "fits", or the reason why this Python cannot make the
virtual environment FOLDER.  It removes a FOLDER that another version made, or whose Python is gone.  Unless
this Python was ``chosen``, it keeps each FOLDER of a supported version.

make runs it before it installs anything, with whatever ``python3`` is.  So it needs only the standard
library, and runs on old versions too.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = (3, 10)  # requires-python in pyproject.toml
FITS = "fits"


def answer(folder: Path, chosen: bool) -> str:  # as on the command line
    """Return FITS, or the reason against it; remove a folder that does not fit."""
    made_by = _version_of(folder)
    kept = made_by == sys.version_info[:2] or (made_by >= OLDEST and not chosen)
    if kept and made_by >= OLDEST:
        return FITS
    if sys.version_info[:2] < OLDEST:
        wanted, found = (".".join(map(str, one)) for one in (OLDEST, sys.version_info[:3]))
        return (
            f"{sys.executable} is Python {found}, and sa_doclock needs {wanted} or newer: name one, "
            f"as in: make test PYTHON=python{wanted}"
        )
    if made_by:
        print(f"Removing {folder}, which another Python has made", file=sys.stderr)
        shutil.rmtree(folder)
    return FITS


def _version_of(folder: Path) -> tuple:  # type: ignore[type-arg]  # no tuple[int, ...] before 3.9
    """Return the version that made the folder; (0,) if its Python is gone, () without a folder."""
    config = folder / "pyvenv.cfg"
    if not config.is_file():
        return ()
    found = re.search(r"^version(?:_info)? *= *(\d+)\.(\d+)", config.read_text(), re.MULTILINE)
    python = folder / "bin" / "python"
    try:
        subprocess.run([str(python), "-c", ""], check=True, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return (0,)
    return (int(found.group(1)), int(found.group(2))) if found else (0,)


if __name__ == "__main__":
    print(answer(Path(sys.argv[1]), sys.argv[2:] == ["chosen"]))
