"""The built site, and a Chromium that opens it or another page.

The machine provides Chromium: ``SA_DOCLOCK_TEST_CHROMIUM``, or a program in PATH under one of its names.
``SA_DOCLOCK_TEST_REQUIRE=chromium`` makes a missing Chromium an error.
"""

from __future__ import annotations

import functools
import http.server
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.docs.pages import ROOT

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def required() -> bool:
    """Return whether a missing browser is an error."""
    return "chromium" in os.environ.get("SA_DOCLOCK_TEST_REQUIRE", "").split(",")


def skip_or_fail(reason: str) -> None:
    """Skip the test; fail it if the environment requires a browser."""
    if required():
        pytest.fail(f"SA_DOCLOCK_TEST_REQUIRE names chromium: {reason}")
    pytest.skip(reason)


def build(folder: Path) -> None:
    """Build the site strictly into a folder; skip if mkdocs is not installed."""
    if importlib.util.find_spec("mkdocs") is None:
        skip_or_fail("THE SITE WAS NOT BUILT: pip install --group docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Print nothing: a browser closes its connections when it opens the next page."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine; yield its URL, with a trailing slash."""
    handler = functools.partial(_Quiet, directory=str(folder))
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def chromium(profile: Path, **options: Any) -> Iterator[Any]:
    """Start a headless Chromium with its own profile; yield its playwright context."""
    path = os.environ.get("SA_DOCLOCK_TEST_CHROMIUM") or next(
        (found for name in NAMES if (found := shutil.which(name))), None
    )
    if path is None:
        skip_or_fail("NO BROWSER HAS OPENED THE PAGE: there is no chromium")
    if importlib.util.find_spec("playwright") is None:
        skip_or_fail("NO BROWSER HAS OPENED THE PAGE: pip install --group docs")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    settings: Mapping[str, Any] = {"headless": True, "args": [*FLAGS], **options}
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(profile), executable_path=path, **settings
        )
        context.set_default_timeout(180_000)
        try:
            yield context
        finally:
            context.close()
