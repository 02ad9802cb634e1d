"""Processes that are forked from one with SQLAlchemy: they know nothing of ours, or of each other."""

from __future__ import annotations

from tests.support.fresh_process import Ended, FreshProcesses

LOADED = """
import sys
print("sqlalchemy.orm" in sys.modules, any(name.startswith("sa_doclock") for name in sys.modules))
import sa_doclock
"""


def test_each_has_sqlalchemy_and_nothing_of_those_before(fresh: FreshProcesses) -> None:
    assert [fresh.run(LOADED) for _ in range(2)] == [Ended(0, "True False\n", "")] * 2


def test_the_exit_status_is_that_of_the_code(fresh: FreshProcesses) -> None:
    assert fresh.run("import sys; sys.exit(3)") == Ended(3, "", "")
    assert fresh.run("import sys; sys.exit()") == Ended(0, "", "")
    assert fresh.run("import sys; sys.exit('why')") == Ended(1, "", "why\n")
    failed = fresh.run("1 / 0")
    assert failed.returncode == 1
    assert failed.stderr.endswith("ZeroDivisionError: division by zero\n")
