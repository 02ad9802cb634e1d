"""``python -m lab.programs``: run the test suites of public programs with and without the audit.

Each program is cloned at its version and gets a virtual environment of its own, in ``.programs`` or
``--folder``.  Nothing of it is committed but the figures (results.json) and, for each error, whether a
reader of the code calls it true (verdicts.json).  An error without a verdict is shown, and the
command fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.programs.replay import file_of
from lab.programs.suites import SUITES, Suite
from lab.programs.table import Result, read_results, save_results, without_verdict

_ROOT = Path(__file__).parents[2]
_PATH = os.pathsep.join(map(str, (_ROOT, _ROOT / "audit")))
_OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-o", "addopts=")
_LIMIT = 1200  # seconds for one run
_ORM = ("-p", "sqlalchemy.orm")  # the audit needs it; a program may use Core alone


class Program:
    """One program on this machine."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.suite: Suite = SUITES[name]
        self._source = (folder / "src" / name).absolute()
        self._venv = (folder / "venv" / name).absolute()
        self._report = (folder / f"{name}.json").absolute()
        self._python = self._venv / "bin" / "python"

    def prepare(self) -> None:
        """Clone and install the program, if it is missing."""
        self._source.parent.mkdir(parents=True, exist_ok=True)
        # Without it, a program that has no pytest configuration would get this project's.
        (self._source.parent / "pytest.ini").touch()
        if self.suite.own:
            self._source.mkdir(parents=True, exist_ok=True)
            shutil.copy(
                Path(__file__).with_name(self.suite.own), self._source / self.suite.tests[0]
            )
        elif not self._source.exists():
            address = f"https://github.com/{self.suite.repository}"
            clone = ("git", "clone", "-q", "--depth=1", f"--branch={self.suite.tag}")
            subprocess.run([*clone, address, self._source], check=True)
        done = self._venv / "ok"
        if not done.exists():
            shutil.rmtree(self._venv, ignore_errors=True)
            venv.create(self._venv, with_pip=True)
            program = self.suite.requirement or f"{self._source}{self.suite.extras}"
            self._install("pytest", *self.suite.needs, *self._editable(), program)
            if self.suite.requirement:  # the audit treats its lines as the program's
                self._install("--no-deps", "--upgrade", "--target", self._source, program)
            done.touch()

    def _editable(self) -> tuple[str, ...]:
        return () if self.suite.requirement else ("--editable",)

    def _install(self, *arguments: str | Path) -> None:
        version = {"SETUPTOOLS_SCM_PRETEND_VERSION": self.suite.version}
        install = (self._python, "-m", "pip", "install", "-q")
        subprocess.run([*install, *arguments], check=True, env={**os.environ, **version})

    def run(self, times: int) -> Result:
        """Run the suite with and without the audit, in turn."""
        plain, audited = [], []
        for _ in range(times):
            plain.append(self._run(*_ORM))
            self._report.unlink(missing_ok=True)
            options = (*_ORM, "-p", "pytest_sa_doclock", f"--doclock-audit={self._report}")
            audited.append(self._run(*options))
        found = json.loads(self._report.read_text(encoding="utf-8"))
        errors = [one for one in found if one["severity"] == "error"]
        return Result(
            self.name,
            self.suite.version,
            " ".join(self.suite.tests),
            tuple((one["code"], tuple(map(self._place, one["sites"]))) for one in errors),
            len(found) - len(errors),
            round(min(audited) / min(plain), 2),
            self._replay(),
        )

    def _replay(self) -> tuple[tuple[int, int], ...]:
        """Return the number of wrong orders, and of all orders, for each replayed error."""
        if not file_of(self.name).exists():
            return ()
        with TemporaryDirectory() as folder:
            done = subprocess.run(
                [self._python, "-m", "lab.programs.replay", self.name, folder],
                env=self._environment(),
                capture_output=True,
                text=True,
                timeout=_LIMIT,
                check=True,
            )
        counts = json.loads(done.stdout.splitlines()[-1])
        print(f"{self.name}: {counts} orders are wrong, of all", flush=True)
        return tuple((wrong, orders) for wrong, orders in counts)

    def _environment(self) -> dict[str, str]:
        """Return the environment of a run: the audit is compiled once, like an installed package."""
        bytecode = {
            "PYTHONPYCACHEPREFIX": str(self._venv / "bytecode"),
            "PYTHONDONTWRITEBYTECODE": "",
        }
        return {**os.environ, **bytecode, "PYTHONPATH": _PATH}

    def _place(self, site: str) -> str:
        return re.sub(r"^.*/site-packages/", "", site).removeprefix(f"{self._source}/")

    def _run(self, *options: str) -> float:
        """Run the tests; return the CPU seconds, which other programs do not affect."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [
                *(self._python, "-m", "pytest", *_OPTIONS, f"--rootdir={self._source}"),
                *(*options, *self.suite.tests),
            ],
            cwd=self._source,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        last = ["", *done.stdout.strip().splitlines()][-1]
        print(f"{self.name}: {seconds:.1f} s, {last}", flush=True)
        if " passed" not in done.stdout:  # tests that fail here also fail without the audit
            raise SystemExit(f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return seconds


def main() -> int:
    """Run the named programs, or all."""
    parser = argparse.ArgumentParser(prog="python -m lab.programs", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SUITES))
    parser.add_argument("--folder", type=Path, default=_ROOT / ".programs")
    parser.add_argument(
        "--times", type=int, default=2, help="runs of each, for the cost: the first one compiles"
    )
    given = parser.parse_args()
    open_ = 0
    for name in given.names or SUITES:
        program = Program(name, given.folder)
        program.prepare()
        result = program.run(given.times)
        save_results({**read_results(), name: result})
        for code, places in without_verdict(result):
            open_ += 1
            print(f"no verdict: {name} {code} {', '.join(places)}", flush=True)
    return 1 if open_ else 0


if __name__ == "__main__":
    raise SystemExit(main())
