"""A parser that is not available is reported with the reason, and nothing half-made stays."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from pathlib import Path

import pytest

from lab.servers.model import UnavailableError
from lab.tsql import wheels
from lab.tsql.wheels import unpacked


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Seem to be a new machine of the kind that has it, without a network."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setenv("SA_DOCLOCK_TEST_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def test_on_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UnavailableError, match="Linux on x86_64"):
        unpacked()


def test_on_another_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(UnavailableError, match="Linux on x86_64"):
        unpacked()


def test_without_the_dependency_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UnavailableError, match="dependency group tsql"):
        unpacked()


def test_where_nothing_proprietary_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "cached", pytest.fail)  # not even out of the cache
    monkeypatch.setenv("SA_DOCLOCK_TEST_PROPRIETARY", "no")
    with pytest.raises(UnavailableError, match="PROPRIETARY=no, and Microsoft's T-SQL parser is"):
        unpacked()


def test_a_misspelt_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SA_DOCLOCK_TEST_PROPRIETARY", "0")
    with pytest.raises(ValueError, match="PROPRIETARY is '0'; it can be 'yes' or 'no'"):
        unpacked()


def test_each_wheel_is_announced() -> None:
    pinned = re.findall(r"^([\w-]+)==(\S+)", wheels.WHEELS.read_text("utf-8"), re.MULTILINE)
    for (name, version), received in zip(pinned, wheels.DOWNLOADS, strict=True):
        assert f"{name} {version}" in str(received)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_without_a_network(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="No matching distribution found for mssql-cli"):
        unpacked()
    assert list(tmp_path.iterdir()) == []
