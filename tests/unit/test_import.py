"""What ``import sa_doclock`` loads: SQLAlchemy, and nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sa_doclock


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "absent", ["greenlet", "tenacity", "alembic", "typer", "rich", "psycopg", "pymysql"]
)
def test_it_works_without_an_extra(absent: str) -> None:
    result = run(f"import sys; sys.modules[{absent!r}] = None; import sa_doclock; print('ok')")
    assert (result.stdout, result.stderr) == ("ok\n", "")


def test_every_public_name_is_there() -> None:
    assert sorted(sa_doclock.__all__) == sa_doclock.__all__
    for name in sa_doclock.__all__:
        assert getattr(sa_doclock, name).__name__ == name


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'NoSuchThing'"):
        sa_doclock.NoSuchThing  # noqa: B018
