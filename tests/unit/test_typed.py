"""The package has types for the type checkers of its users."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

CHECKERS = {
    "mypy": ["mypy", "--strict", "--cache-dir", ".cache", "program.py"],
    "basedpyright": [
        *("basedpyright", "--level", "error", "--pythonpath", sys.executable),
        "program.py",
    ],
}
WRONG = """

def wrong(session: LockingSession) -> None:
    session.get_entity(Order, 1, lock="FOR UPDATE")
    session.locked(1, 2, 3, 4)
    Scoped.get_entity(Order, 1, lock="FOR UPDATE")
    AsyncScoped.on_commit(1)
"""


def test_the_package_says_that_it_has_types() -> None:
    assert files("sa_doclock").joinpath("py.typed").is_file()


def _check(checker: str, folder: Path, program: str) -> tuple[int, str]:
    pytest.importorskip(checker, reason="of the dependency group lint")
    (folder / "program.py").write_text(program)
    result = subprocess.run(
        [sys.executable, "-m", *CHECKERS[checker]],
        capture_output=True,
        text=True,
        cwd=folder,  # mypy takes a package in the current folder for typed without py.typed
        check=False,
    )
    return result.returncode, result.stdout


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("checker", CHECKERS)
def test_the_public_api_is_typed(checker: str, tmp_path: Path) -> None:
    program = Path(__file__).with_name("typed_program.py").read_text()
    status, output = _check(checker, tmp_path, program)
    assert status == 0, output
    status, output = _check(checker, tmp_path, program + WRONG)
    assert status != 0
    assert "4 errors" in output, output
