"""The outbox: workers are killed before and after they send, and each order's message arrives."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.docs.programs import run_python
from tests.recipes.conftest import OPTIONS, Recipe, text_of_program
from tests.recipes.load import at_once
from tests.support.databases import Database

WORKERS, DEATHS, ORDERS = 3, 8, 40
EARLY = (
    "            send(message.id, message.text)\n",
    "            claim.session.on_commit(partial(send, message.id, message.text))\n",
)
UNLOCKED = ("claim_each(Session, select(Message).where(~Message.sent), on_error=\"collect\")", "unlocked()")
WORKER = '''

import os, random, signal
from functools import partial


def send(ident, text):
    """Die before it is sent, or after; else send it."""
    fate = random.random()
    if fate < 0.1:
        os.kill(os.getpid(), signal.SIGKILL)
    with open("arrived", "a") as arrived:
        arrived.write(f"{text}\\n")
    if fate > 0.9:
        with open("deaths", "a") as deaths:
            deaths.write("after\\n")
        os.kill(os.getpid(), signal.SIGKILL)


while send_all(send).processed:
    pass
'''
