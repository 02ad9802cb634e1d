"""The edit screen of docs/check-outs.md in a real browser: two users, one order."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.docs.browser import chromium
from tests.docs.pages import blocks_of

PAGE = "docs/check-outs.md"
SHOP = "http://shop.test"


def program(folder: Path) -> dict[str, Any]:
    """Run the page up to the program, and return what it has defined; each lease is of three seconds."""
    found: dict[str, Any] = {}
    for block in blocks_of(PAGE):
        if block.language == "python":
            text = block.text.replace("sqlite:///orders.db", f"sqlite:///{folder / 'orders.db'}")
            exec(compile(text, str(block), "exec", dont_inherit=True), found)
        if block.name == "edit-screen":
            found["LEASE"] = timedelta(seconds=3)
            return found
    raise LookupError("edit-screen")


@pytest.mark.slow
def test_two_users_and_one_order(tmp_path: Path) -> None:
    testing = pytest.importorskip("fastapi.testclient", reason="pip install fastapi httpx")
    shop = program(tmp_path)
    client = testing.TestClient(shop["app"], base_url=SHOP)

    def answer(route: Any) -> None:
        asked = route.request
        kind = {"content-type": asked.headers.get("content-type", "text/plain")}
        got = client.request(asked.method, asked.url, content=asked.post_data or "", headers=kind)
        route.fulfill(status=got.status_code, headers=dict(got.headers), body=got.content)

    with chromium(tmp_path / "profile") as context:
        context.route(f"{SHOP}/**", answer)
        ann, bob = context.new_page(), context.new_page()
        bob.on("dialog", lambda dialog: dialog.accept())

        ann.goto(f"{SHOP}/orders/43/edit?user=ann")
        assert state(ann).startswith("You are editing until")
        with ann.expect_response("**/renewal") as renewed:  # by the page itself
            pass
        assert renewed.value.status == 200

        refused = bob.goto(f"{SHOP}/orders/43/edit?user=bob")
        assert refused.status == 423
        assert re.fullmatch(r"ann is editing since \d\d:\d\d, until \d\d:\d\d", state(bob))
        bob.click("#take")
        bob.wait_for_selector("#save")
        assert state(bob).startswith("You are editing until")

        ann.fill("#total", "1")
        ann.click("#save")
        ann.wait_for_function("document.getElementById('state').textContent.startsWith('Somebody')")
        bob.fill("#total", "7")
        bob.click("#save")
        bob.wait_for_function("document.getElementById('state').textContent === 'Saved'")

    with shop["Session"]() as session:
        assert session.get_one(shop["Order"], 43).total == 7
        assert session.checkouts(expired=True) == []


def state(page: Any) -> str:
    """Return what the page tells its user."""
    return str(page.text_content("#state"))
