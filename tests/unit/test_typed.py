"""The package ships types for its users' type checkers."""

from __future__ import annotations

import re
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
    session.get_entity(Order, 1, lock="FOR UPDATE")  # wrong
    session.locked(1, 2, 3, 4)  # wrong
    Scoped.get_entity(Order, 1, lock="FOR UPDATE")  # wrong
    AsyncScoped.on_commit(1)  # wrong


def misspelt(session: LockingSession, given: Order) -> None:
    with session.locked(Order, 1) as row:
        row.misspelt  # wrong
    with session.locked(given) as row:
        row.misspelt  # wrong
    with session.locked(select(Order).where(Order.id == 1)) as row:
        row.misspelt  # wrong
    with session.locked(with_lock(select(Order), FOR_UPDATE)) as row:
        row.misspelt  # wrong
    with session.locked_document(Order, 1) as row:
        row.misspelt  # wrong
    with session.locked_document(select(Order)) as row:
        row.misspelt  # wrong
    with Scoped.locked(select(Order)) as row:
        row.misspelt  # wrong
    session.scalars(session.entity_set(Order, FOR_UPDATE)).one().misspelt  # wrong
    session.execute(session.entity_set(Order)).scalar_one().misspelt  # wrong
    Scoped.scalars(Scoped.entity_set(Order).limit(1)).one().misspelt  # wrong
    session.scalars(with_lock(select(Order), FOR_UPDATE)).one().misspelt  # wrong
    session.get_or_create_entity(Order, 1)[0].misspelt  # wrong
    for claim in claim_each(Session, select(Order), one_per=Order.id):
        with claim as row:
            row.misspelt  # wrong
    for lease in lease_each(Session, select(Order), owner="ann"):
        lease.row.misspelt  # wrong
        with lease, lease.saving() as row:
            row.misspelt  # wrong


async def misspelt_async(session: AsyncLockingSession, given: Order) -> None:
    async with session.locked(select(Order)) as row:
        row.misspelt  # wrong
    async with session.locked(given) as row:
        row.misspelt  # wrong
    async with session.locked_document(select(Order)) as row:
        row.misspelt  # wrong
    async with AsyncScoped.locked(select(Order)) as row:
        row.misspelt  # wrong
    (await session.scalars(session.entity_set(Order))).one().misspelt  # wrong
    (await AsyncScoped.scalars(AsyncScoped.entity_set(Order))).one().misspelt  # wrong
    (await session.get_or_create_entity(Order, 1))[0].misspelt  # wrong
    async for claim in async_claim_each(AsyncSession, select(Order)):
        async with claim as row:
            row.misspelt  # wrong
    async for lease in async_lease_each(AsyncSession, select(Order), owner="ann"):
        lease.row.misspelt  # wrong
        async with lease, lease.saving() as row:
            row.misspelt  # wrong


def misspelt_errors(taken: CheckedOut, lost: CheckoutLost) -> None:
    taken.checkout.misspelt  # wrong
    lost.expected.misspelt  # wrong
"""
_LINE = re.compile(r"program\.py:(\d+):.*\berror:")


@pytest.mark.parametrize("package", ["sa_doclock", "pytest_sa_doclock", "doclock_audit"])
def test_the_package_says_that_it_has_types(package: str) -> None:
    assert files(package).joinpath("py.typed").is_file()


def _check(checker: str, folder: Path, program: str) -> tuple[int, str]:
    pytest.importorskip(checker, reason="of the dependency group lint")
    (folder / "program.py").write_text(program)
    result = subprocess.run(
        [sys.executable, "-m", *CHECKERS[checker]],
        capture_output=True,
        text=True,
        cwd=folder,  # mypy treats a package in the current folder as typed even without py.typed
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
    lines = enumerate((program + WRONG).splitlines(), 1)
    wrong = [number for number, line in lines if line.endswith("# wrong")]
    assert sorted({int(number) for number in _LINE.findall(output)}) == wrong, output
