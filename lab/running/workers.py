"""The processes of a test run: one alone, or a controller and the workers of pytest-xdist.

A worker has no terminal: what it has to say goes to the controller when its tests have ended.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

_SKIPPED = pytest.StashKey[dict[str, str]]()


def is_worker(config: pytest.Config) -> bool:
    """Return whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def worker_input(config: pytest.Config) -> dict[str, Any]:
    """Return what the controller has given to this worker."""
    found: dict[str, Any] = config.workerinput  # type: ignore[attr-defined]
    return found


def worker_output(config: pytest.Config) -> dict[str, Any]:
    """Return what this worker gives to the controller: plain types, by name."""
    found: dict[str, Any] = config.workeroutput  # type: ignore[attr-defined]
    return found


def required() -> set[str]:
    """Return what ``SA_DOCLOCK_TEST_REQUIRE`` names, separated by commas."""
    names = os.environ.get("SA_DOCLOCK_TEST_REQUIRE", "").split(",")
    return {name.strip() for name in names} - {""}


def check_required(what: str, why: str) -> None:
    """Fail where ``SA_DOCLOCK_TEST_REQUIRE`` names what this machine does not have."""
    if what in required():
        pytest.fail(f"SA_DOCLOCK_TEST_REQUIRE names {what}, but there is none: {why}")


def note_skipped(config: pytest.Config, what: str, why: str) -> None:
    """Have the summary say loudly that something was not tested.

    :param what: as in ``DATABASE mysql``.
    """
    config.stash.setdefault(_SKIPPED, {})[what] = why


def skipped(config: pytest.Config) -> dict[str, str]:
    """Return what was noted, with the reasons."""
    return config.stash.get(_SKIPPED, {})
