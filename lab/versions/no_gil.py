"""A pytest plugin: checks that each test ends without a GIL, which an extension module may enable.

greenlet would enable it; a test that imports greenlet is skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_gil() -> Iterator[None]:
    yield
    assert not sys._is_gil_enabled(), "an extension module has switched the GIL on"  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        if "greenlet" not in str(error):
            raise
        pytest.skip("needs greenlet")
