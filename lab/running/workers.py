"""The processes of a test run: a single one, or a controller and pytest-xdist's workers.

A worker has no terminal: it sends its messages to the controller after its tests.
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
    """Return the data that the controller gave to this worker."""
    found: dict[str, Any] = config.workerinput  # type: ignore[attr-defined]
    return found


def worker_output(config: pytest.Config) -> dict[str, Any]:
    """Return the data that this worker gives to the controller: plain types, by name."""
    found: dict[str, Any] = config.workeroutput  # type: ignore[attr-defined]
    return found


def required() -> set[str]:
    """Return the names in ``SA_DOCLOCK_TEST_REQUIRE``, separated by commas there."""
    names = os.environ.get("SA_DOCLOCK_TEST_REQUIRE", "").split(",")
    return {name.strip() for name in names} - {""}


def check_required(what: str, why: str) -> None:
    """Fail if ``SA_DOCLOCK_TEST_REQUIRE`` names something that this machine lacks."""
    if what in required():
        pytest.fail(f"SA_DOCLOCK_TEST_REQUIRE names {what}, but there is none: {why}")


def note_skipped(config: pytest.Config, what: str, why: str) -> None:
    """Make the summary state prominently that something was not tested.

    :param what: such as ``DATABASE mysql``.
    """
    config.stash.setdefault(_SKIPPED, {})[what] = why


def skipped(config: pytest.Config) -> dict[str, str]:
    """Return the notes and their reasons."""
    return config.stash.get(_SKIPPED, {})
