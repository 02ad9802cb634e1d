"""Measure the cost of sa_doclock on SQLAlchemy 2.0, as overhead.py does on the version that is installed.

pip installs the newest SQLAlchemy 2.0 into a separate folder, which goes with the run.

    python -m benchmarks.sqlalchemy_2_0 [--seconds 4] [--databases postgresql] [--json FILE]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lab import script
from benchmarks.lab.figures import Absent, Findings
from benchmarks.lab.places import Place

DATABASES = ("postgresql",)
REQUIREMENT = "SQLAlchemy~=2.0.0"
HOME = Path(__file__).parents[1]


def main(arguments: Sequence[str] | None = None) -> None:
    with script.run(__file__, __doc__ or "", arguments) as run:
        run.on_each(DATABASES, measure)


def measure(run: script.Script, place: Place) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install(folder / "packages")
        json = folder / "overhead.json"
        where = ["--databases", place.name, "--url", f"{place.name}={_text(place)}"]
        effort = [f"--{one}" for one in ("quick", "tiny") if getattr(run.options, one)]
        if run.options.seconds is not None:
            effort += ["--seconds", str(run.options.seconds)]
        command = [
            sys.executable,
            "-m",
            "benchmarks.overhead",
            *where,
            *effort,
            "--json",
            str(json),
        ]
        environment = {**os.environ, "PYTHONPATH": str(folder / "packages")}  # before all else
        subprocess.run(command, check=True, env=environment, cwd=HOME)
        found = Findings.read(json)
    for full, figure in found.figures.items():
        run.findings.note(full.removeprefix(f"{found.script}."), figure)


def install(folder: Path) -> None:
    """Install SQLAlchemy 2.0 into this folder.

    :raises Absent: pip cannot install it.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    installed = subprocess.run([*command, str(folder), REQUIREMENT], check=False)
    if installed.returncode:
        raise Absent(f"pip cannot install {REQUIREMENT}")


def _text(place: Place) -> str:
    return place.url.render_as_string(hide_password=False)


if __name__ == "__main__":
    main()
