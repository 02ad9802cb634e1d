"""The edit screen of docs/check-outs.md in a real browser: the user's view in each state of the page.

The test controls the clock of the pages, and moves it by minutes at once.  The clock of the database runs normally.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa

from tests.docs.browser import chromium, skip_or_fail
from tests.docs.pages import blocks_of

PAGE: Final = "docs/check-outs.md"
SITE: Final = "http://shop.test"
ZONE: Final = "Asia/Kolkata"  # half an hour off the zones of most machines
EDITING: Final = r"You are editing until \d\d:\d\d\."
SAVED: Final = rf"Saved at \d\d:\d\d\. {EDITING}"
MINUTE: Final = 60_000

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


def program(folder: Path) -> dict[str, Any]:
    """Run the page up to the program, and return its definitions."""
    found: dict[str, Any] = {}
    for block in blocks_of(PAGE):
        if block.language == "python":
            text = block.text.replace("sqlite:///orders.db", f"sqlite:///{folder / 'orders.db'}")
            exec(compile(text, str(block), "exec", dont_inherit=True), found)
        if block.name == "edit-screen":
            return found
    raise LookupError("edit-screen")


@dataclass
class Shop:
    """The program, and a browser whose requests it answers.

    :ivar up: the server answers.
    """

    names: dict[str, Any]
    client: Any
    context: Any
    up: bool = True
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1000))
    questions: list[str] = field(default_factory=list)

    def answer(self, route: Any) -> None:
        """Let the program answer a request of the browser."""
        asked = route.request
        if not self.up:
            route.abort("connectionrefused")
            return
        kind = {"content-type": asked.headers.get("content-type", "text/plain")}
        got = self.client.request(
            asked.method, asked.url, content=asked.post_data or "", headers=kind
        )
        route.fulfill(status=got.status_code, headers=dict(got.headers), body=got.content)

    def new_order(self) -> int:
        number = next(self.numbers)
        with self.names["Session"].begin() as session:
            session.add(self.names["Order"](id=number, total=5))
        return number

    def opens(self, order: int, user: str) -> Any:
        """Open the order in a window, as a user."""
        page = self.context.new_page()
        page.set_default_timeout(20_000)
        page.clock.install()
        page.on("dialog", self._agree)
        page.goto(f"{SITE}/orders/{order}/edit?user={user}")
        return page

    def _agree(self, dialog: Any) -> None:
        self.questions.append(dialog.message)
        dialog.accept()

    def total(self, order: int) -> int:
        """Return the total in the database."""
        with self.names["Session"]() as session:
            found: int = session.get_one(self.names["Order"], order).total
            return found

    def checkout(self, order: int) -> Any:
        """Return the check-out in the database."""
        with self.names["Session"]() as session:
            return session.checkout_of(self.names["Order"], order)

    def expire(self, order: int) -> None:
        """Make the check-out expire."""
        table = self.names["table"]
        with self.names["engine"].begin() as connection:
            (row,) = connection.execute(sa.select(table).where(table.c.ident == str(order)))
            ended = sa.update(table).where(table.c.id == row.id).values(until=row.since)
            connection.execute(ended)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    if find_spec("fastapi") is None:
        skip_or_fail("NO BROWSER HAS OPENED THE EDIT SCREEN: pip install fastapi httpx")
    testing = pytest.importorskip("fastapi.testclient")  # which warns
    folder = tmp_path_factory.mktemp("shop")
    names = program(folder)
    client = testing.TestClient(names["app"], base_url=SITE, raise_server_exceptions=False)
    options = {"timezone_id": ZONE, "locale": "en-GB"}
    with chromium(folder / "profile", **options) as context:
        found = Shop(names, client, context)
        context.route(f"{SITE}/**", found.answer)
        yield found


@pytest.fixture(autouse=True)
def up_again(shop: Shop) -> Iterator[None]:
    yield
    shop.up = True
    shop.questions.clear()


def sees(page: Any, words: str) -> str:
    """Wait until the user sees a line that matches this pattern; return it."""
    line = page.locator("#state", has_text=re.compile(rf"^{words}$"))
    line.wait_for()
    found: str = line.inner_text()
    return found


def passes(page: Any, minutes: float) -> None:
    """Advance the page's clock."""
    page.clock.fast_forward(int(minutes * MINUTE))


def enters(page: Any, total: str) -> None:
    """Type a total and save, as a user."""
    page.fill("#total", total)
    page.click("#save")


def clock(time: datetime) -> str:
    """Return a time as the user's local clock shows it."""
    return f"{time.astimezone(ZoneInfo(ZONE)):%H:%M}"


def test_who_edits_sees_until_when_and_the_page_renews(shop: Shop) -> None:
    order = shop.new_order()
    ann = shop.opens(order, "ann")
    assert sees(ann, EDITING) == f"You are editing until {clock(shop.checkout(order).until)}."
    assert ann.input_value("#total") == "5"
    assert not ann.is_visible("#take")
    before = shop.checkout(order).until
    with ann.expect_response("**/renewal?user=ann") as renewed:
        passes(ann, 6)
    assert renewed.value.status == 200
    assert shop.checkout(order).until > before
    sees(ann, EDITING)


def test_what_is_saved_can_be_changed_and_saved_again(shop: Shop) -> None:
    order = shop.new_order()
    ann = shop.opens(order, "ann")
    sees(ann, EDITING)
    for total in ("7", "8"):
        enters(ann, total)
        sees(ann, SAVED)
        assert shop.total(order) == int(total)
        ann.fill("#total", "9")
        sees(ann, rf"Not saved yet\. {EDITING}")


@pytest.mark.parametrize("wrong", ["12,50", "", "-1", "1e3", "1000000000"])
def test_what_is_no_total_is_not_saved(shop: Shop, wrong: str) -> None:
    order = shop.new_order()
    ann = shop.opens(order, "ann")
    sees(ann, EDITING)
    enters(ann, wrong)
    said = sees(ann, rf"Not saved: Input should be .+\. {EDITING}")
    assert "undefined" not in said
    assert (shop.total(order), ann.input_value("#total")) == (5, wrong)
    enters(ann, "12")
    sees(ann, SAVED)
    assert shop.total(order) == 12


def test_a_server_that_is_down(shop: Shop) -> None:
    order = shop.new_order()
    ann = shop.opens(order, "ann")
    sees(ann, EDITING)
    shop.up = False
    passes(ann, 1)
    sees(ann, rf"The server is not available\. {EDITING}")
    enters(ann, "7")
    sees(ann, rf"Perhaps not saved: save again\. The server is not available\. {EDITING}")
    shop.up = True
    ann.click("#save")
    sees(ann, SAVED)
    assert shop.total(order) == 7


def test_a_server_that_is_down_until_the_time_is_over(shop: Shop) -> None:
    order = shop.new_order()
    ann = shop.opens(order, "ann")
    sees(ann, EDITING)
    shop.up = False
    passes(ann, 16)
    over = r"Your time ended at \d\d:\d\d"
    sees(ann, rf"The server is not available\. {over}: somebody else may edit\.")
    shop.expire(order)
    shop.up = True
    passes(ann, 1)
    sees(ann, rf"{over}\. Nobody is editing\.")


def test_a_server_that_is_down_at_the_beginning(shop: Shop) -> None:
    order = shop.new_order()
    ann = shop.opens(order, "ann")
    sees(ann, EDITING)
    bob = shop.opens(order, "bob")
    sees(bob, "ann is editing since .*")
    shop.up = False
    passes(bob, 1)
    sees(bob, r"The server is not available\.")
    assert not bob.is_visible("#take")
    shop.up = True
    passes(bob, 1)
    sees(bob, "ann is editing since .*")


def test_somebody_else_is_editing_and_ends(shop: Shop) -> None:
    order = shop.new_order()
    ann = shop.opens(order, "ann")
    sees(ann, EDITING)
    bob = shop.opens(order, "bob")
    found = shop.checkout(order)
    times = f"since {clock(found.since)}, until {clock(found.until)}"
    sees(bob, rf"ann is editing {times}\.")
    assert not bob.is_visible("#total")
    enters(ann, "7")
    sees(ann, SAVED)
    ann.click("#done")
    sees(ann, r"Nobody is editing\.")
    passes(bob, 1)  # without a reload
    sees(bob, r"Nobody is editing\.")
    bob.click("#take")
    sees(bob, EDITING)
    assert bob.input_value("#total") == "7"
    assert shop.questions == []
    passes(ann, 1)
    sees(ann, "bob is editing since .*")


def test_who_is_taken_over_keeps_the_input_and_cannot_save(shop: Shop) -> None:
    order = shop.new_order()
    ann = shop.opens(order, "ann")
    sees(ann, EDITING)
    ann.fill("#total", "7")
    bob = shop.opens(order, "bob")
    sees(bob, "ann is editing since .*")
    bob.click("#take")
    sees(bob, EDITING)
    assert shop.questions == ["Whoever is editing cannot save any more. Take over?"]
    ann.click("#save")
    taken = r"bob has taken over\. Your input is not saved: copy it\. bob is editing since .*"
    sees(ann, taken)
    assert (ann.input_value("#total"), ann.is_disabled("#save")) == ("7", True)
    assert shop.total(order) == 5
    passes(ann, 1)
    sees(ann, taken)
    bob.click("#done")
    sees(bob, r"Nobody is editing\.")
    passes(ann, 1)
    sees(ann, r"bob has taken over\. Your input is not saved: copy it\. Nobody is editing\.")


def test_a_page_learns_that_it_is_taken_over_without_saving(shop: Shop) -> None:
    order = shop.new_order()
    ann, again = shop.opens(order, "ann"), None
    sees(ann, EDITING)
    again = shop.opens(order, "ann")  # another window of the same user
    sees(again, EDITING)
    passes(ann, 1)
    sees(ann, r"ann has taken over\. ann is editing since .*")
    enters(again, "7")
    sees(again, SAVED)


def test_a_time_that_is_over(shop: Shop) -> None:
    order = shop.new_order()
    ann = shop.opens(order, "ann")
    sees(ann, EDITING)
    ann.fill("#total", "7")
    shop.expire(order)
    passes(ann, 16)
    sees(
        ann,
        r"Your time ended at \d\d:\d\d\. Your input is not saved: copy it\. Nobody is editing\.",
    )
    assert ann.input_value("#total") == "7"
    ann.click("#take")
    sees(ann, EDITING)
    assert ann.input_value("#total") == "5"


def test_an_operator_has_checked_it_in(shop: Shop) -> None:
    order = shop.new_order()
    ann = shop.opens(order, "ann")
    sees(ann, EDITING)
    with shop.names["Session"].begin() as session:
        session.check_in(session.checkout_of(shop.names["Order"], order))
    enters(ann, "7")
    sees(
        ann,
        r"Somebody has ended your editing\. Your input is not saved: copy it\. Nobody is editing\.",
    )
    assert shop.total(order) == 5


def test_done_asks_before_input_is_lost(shop: Shop) -> None:
    order = shop.new_order()
    ann = shop.opens(order, "ann")
    sees(ann, EDITING)
    ann.fill("#total", "7")
    ann.click("#done")
    sees(ann, r"Nobody is editing\.")
    assert shop.questions == ["Your input is not saved. Stop editing?"]
    assert not ann.is_visible("#total")


def test_a_name_is_text_and_an_order_may_be_missing(shop: Shop) -> None:
    order = shop.new_order()
    sees(shop.opens(order, "%3Cb%3Eann%3C%2Fb%3E"), EDITING)
    sees(shop.opens(order, "bob"), "<b>ann</b> is editing since .*")
    sees(shop.opens(999, "ann"), r"There is no such order\.")
