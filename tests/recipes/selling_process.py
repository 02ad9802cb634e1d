"""A process that sells tickets until it is killed: ``main(PROGRAM, URL, OPTIONS)``.

It prints the number of each ticket once its buyer has it.
"""

from __future__ import annotations

import json
import sys
import threading
from types import ModuleType
from unittest import mock

import sqlalchemy as sa

THREADS = 8


def main(text: str, url: str, options: str) -> None:
    program = ModuleType("sold_by_a_process")
    sys.modules[program.__name__] = program
    engine = sa.create_engine(url, pool_size=THREADS, **json.loads(options))
    with mock.patch("sqlalchemy.create_engine", return_value=engine):
        exec(compile(text, "counter", "exec", dont_inherit=True), vars(program))

    def work() -> None:
        while True:
            number = program.buy_ticket(1)
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()

    for _ in range(THREADS):
        threading.Thread(target=work).start()
