"""Sends the mails of the outbox, at least once each; run as many workers as you like."""

import os
import time
from pathlib import Path

from sqlalchemy import select

from sa_doclock import claim_each
from shop.database import Session
from shop.models import Mail

SENT = Path(os.environ.get("SHOP_SENT", "sent.txt"))


def deliver(mail: Mail) -> None:
    """Write the mail to a file with its id, which lets the receiver detect a duplicate."""
    with SENT.open("a", encoding="utf-8") as file:
        file.write(f"{mail.id} {mail.text}\n")


def send_all() -> int:
    """Send all waiting mails; return their number."""
    claims = claim_each(Session, select(Mail).where(~Mail.sent), on_error="collect")
    for claim in claims:
        with claim as mail:
            deliver(mail)
            mail.sent = True
    return claims.report.processed


def run() -> None:
    """Send mails forever."""
    while True:
        if not send_all():
            time.sleep(0.2)
