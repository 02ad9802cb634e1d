"""The tests pass in a clone of any name, in any folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy

from tests.docs.pages import ROOT
from tests.support.own_code import PACKAGE

#: Its name is the package's; above it are a space, a hidden folder, and the names of other folders.
CLONE = Path(".hidden", "my site-packages", "site-packages", "tests", "sa_doclock")

#: Those that tell the program's files from ours, or from those of SQLAlchemy.
TESTS = (
    "tests/docs/test_tutorial.py",
    "tests/integration/locking/transactions/test_call_budget.py",
    "tests/unit/test_linear.py",
    "tests/unit/test_warned_line.py",
    "tests/integration/guard/test_sentence_of_read.py",
)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_clone_named_as_the_package(tmp_path: Path) -> None:
    if PACKAGE.parent != ROOT:
        pytest.skip("the tests run on an installed package, whose sources are not here")
    clone = tmp_path / CLONE
    hidden = shutil.ignore_patterns(".*", "__pycache__")
    shutil.copytree(ROOT, clone, ignore=hidden)
    # A virtual environment in the clone has it below the clone's name, too.
    (clone / "sqlalchemy").symlink_to(Path(sqlalchemy.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--databases=sqlite", "--pairwise", *TESTS],
        cwd=clone,
        env={
            name: value for name, value in os.environ.items() if name != "SA_DOCLOCK_TEST_REQUIRE"
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout
