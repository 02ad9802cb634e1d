"""The package has types for the type checkers of its users."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

PROGRAM = """\
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_doclock import AsyncLockingSession, LockingSession, LockOptions, __version__


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


with LockingSession(create_engine("sqlite://")) as session:
    reveal_type(session.get_entity(Order, 1, LockOptions.ForUpdate))
    reveal_type(session.held_locks)
    session.get_entity(Order, 1, lock="FOR UPDATE")
reveal_type(AsyncLockingSession.save_changes)
reveal_type(__version__)
"""


def test_the_package_says_that_it_has_types() -> None:
    assert files("sa_doclock").joinpath("py.typed").is_file()


@pytest.mark.slow
def test_a_program_is_checked_against_the_types(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="of the dependency group lint")
    (tmp_path / "program.py").write_text(PROGRAM)
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", ".cache", "program.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,  # mypy takes a package in the current folder for typed without py.typed
        check=False,
    )
    found = [line.partition("program.py:")[2] for line in result.stdout.splitlines()]
    assert 'Revealed type is "program.Order | None"' in found[0], result.stdout
    assert "LockOptions]" in found[1]
    assert 'error: Argument "lock" to "get_entity"' in found[2]
    assert "Coroutine[Any, Any, None]" in found[3]
    assert 'Revealed type is "str"' in found[4]
    assert "Found 1 error" in result.stdout
