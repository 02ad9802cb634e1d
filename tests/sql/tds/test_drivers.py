"""A driver that is not available is reported with the reason, and nothing half-made stays."""

from __future__ import annotations

import platform
import re
import shutil
import sys
from pathlib import Path

import pytest

from lab.servers.debian import unpacked_alone
from lab.servers.model import UnavailableError
from tests.sql.tds import drivers, python_drivers


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Seem to be a new machine of the kind that has them, without a network."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(drivers, "pyodbc", object)
    monkeypatch.setenv("SA_DOCLOCK_TEST_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def test_microsofts_on_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UnavailableError, match="Linux on x86_64"):
        drivers.odbc18(0)


def test_microsofts_where_nothing_proprietary_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "cached", pytest.fail)  # not even out of the cache
    monkeypatch.setenv("SA_DOCLOCK_TEST_PROPRIETARY", "no")
    with pytest.raises(UnavailableError, match="PROPRIETARY=no, and Microsoft's ODBC driver is"):
        drivers.odbc18(0)


def test_microsofts_is_announced() -> None:
    pinned = re.search(r"^([\w-]+)==(\S+)", drivers.WHEELS.read_text("utf-8"), re.MULTILINE)
    assert pinned is not None
    assert f"{pinned[1]} {pinned[2]}" in str(drivers.DOWNLOAD)


def test_the_python_drivers_are_announced() -> None:
    pinned = re.findall(r"^([\w-]+)==(\S+)", python_drivers.WHEELS.read_text("utf-8"), re.MULTILINE)
    announced = [one.what for one in python_drivers.DOWNLOADS]
    assert announced == [f"{name} {version}" for name, version in pinned]


def test_they_are_not_to_be_had_on_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(python_drivers, "find_spec", lambda _: None)
    with pytest.raises(UnavailableError, match="pymssql: of its wheels, those for Linux"):
        python_drivers._folder("pymssql")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_microsofts_without_a_network(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="No matching distribution found for mssql-python"):
        drivers.odbc18(0)
    assert list(tmp_path.iterdir()) == []


def test_debians_on_another_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(UnavailableError, match="tdsodbc can only be unpacked on Debian"):
        unpacked_alone("tdsodbc", licence="LGPL-2.1")
    assert list(tmp_path.iterdir()) == []


def test_a_library_that_does_not_load(tmp_path: Path) -> None:
    broken = tmp_path / "libbroken.so"
    broken.write_bytes(b"no library")
    with pytest.raises(UnavailableError, match="libbroken"):
        drivers._loaded(broken)
