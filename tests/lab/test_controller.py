"""Messages from the workers of pytest-xdist to the controller, and back."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from multiprocessing.connection import Listener

import pytest

from lab.running import controller
from lab.running.controller import Controller, register_tests
from lab.running.shares import server_of, servers_for
from lab.servers import Missing, Server, UnavailableError
from lab.servers.model import no_stop
from tests.reliability import Reliability
from tests.reliability.soaked import as_json, from_json


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note which servers are started, and start none."""
    noted: list[str] = []

    def find_servers(names: Iterable[str]) -> dict[str, Server | Missing]:
        new = list(names)
        noted.extend(new)
        found: dict[str, Server | Missing] = {
            name: Server(name, f"{name}://", "1", "here", stop=lambda: None) for name in new
        }
        if "mariadb" in found:
            found["mariadb"] = Missing("mariadb", "there is none")
        return found

    monkeypatch.setattr(controller, "find_servers", find_servers)
    return noted


def test_a_server_is_started_once_for_all_workers(started: list[str]) -> None:
    one = Controller()
    address = one.address()
    assert one.address() is address
    first = register_tests(address, ["mysql", "mariadb"], lambda _: {"a": "mysql"})
    second = register_tests(address, ["postgresql", "mysql"], lambda _: {"b": "postgresql"})
    assert started == ["mysql", "mariadb", "postgresql"]
    assert first["mariadb"] == Missing("mariadb", "there is none")
    assert second.keys() == {"postgresql", "mysql"}
    assert second["mysql"] == Server("mysql", "mysql://", "1", "here", stop=no_stop)
    assert one.groups == {"a": "mysql", "b": "postgresql"}


def test_a_worker_whose_tests_need_no_server_gets_none(started: list[str]) -> None:
    assert register_tests(Controller().address(), [], lambda _: {"a": "a.py"}) == {}
    assert started == []


def test_workers_can_connect_while_the_servers_of_another_are_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy: list[Listener] = []  # with another worker
    monkeypatch.setattr(Controller, "_serve", lambda _, listener: busy.append(listener))
    address = Controller().address()
    with ExitStack() as stack:
        for _ in range(20):
            place = address["host"], address["port"]
            stack.enter_context(socket.create_connection(place, timeout=10))
    busy[0].close()


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Find servers of this run, which may be killed; note which others are started, and start none."""
    noted: list[str] = []

    def find_servers(names: Iterable[str]) -> dict[str, Server | Missing]:
        return {name: Server(name, "first", "1", "here", crash=lambda: None) for name in names}

    def start_private(name: str) -> Server:
        noted.append(name)
        return Server(name, "second", "1", "here")

    monkeypatch.setattr(controller, "find_servers", find_servers)
    monkeypatch.setattr(controller, "start_private", start_private)
    return noted


def test_most_tests_are_shared_by_two_servers(tried: list[str]) -> None:
    names = servers_for(["postgresql"] * 1000 + ["mysql"])
    assert names == {"postgresql", "postgresql/2", "mysql"}
    one = Controller()
    found = one.find(names)
    assert one.find(names) == found
    assert tried == ["postgresql"]
    urls = {name: server.url for name, server in found.items() if isinstance(server, Server)}
    assert urls == {"postgresql": "first", "mysql": "first", "postgresql/2": "second"}
    files = [f"tests/test_{number}.py" for number in range(50)]
    used = {server_of("postgresql", file, found) for file in files}
    assert used == {"postgresql", "postgresql/2"}


def test_another_server_that_does_not_start_is_tried_once(
    tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_private(name: str) -> Server:
        tried.append(name)
        raise UnavailableError("the machine has too many of its kind")

    monkeypatch.setattr(controller, "start_private", start_private)
    one = Controller()
    for _worker in range(4):
        assert one.find(["postgresql", "postgresql/2"]).keys() == {"postgresql"}
    assert tried == ["postgresql"]


def test_few_tests_have_one_server() -> None:
    assert servers_for(["postgresql", "mysql"] * 100) == {"postgresql", "mysql"}


def test_a_server_by_url_is_the_only_one(started: list[str]) -> None:
    found = Controller().find(["postgresql", "postgresql/2"])
    assert started == ["postgresql"]  # found without a way to kill it, as those of others are
    assert found.keys() == {"postgresql"}
    assert server_of("postgresql", "tests/test_1.py", found) == "postgresql"


def test_what_two_workers_have_survived_adds_up() -> None:
    total = Reliability()
    for errors in (2, 3):
        worker = Reliability()
        row = worker.row("tasks cancelled", "postgresql")
        row.injected, row.errors = 10, Counter(DeadlockDetected=errors)
        worker.fuzzed("keys", 100)
        total.add(from_json(as_json(worker)))
    (row,) = total.rows()
    assert (row.injected, row.errors) == (20, Counter(DeadlockDetected=5))
    assert total.inputs == Counter(keys=200)
