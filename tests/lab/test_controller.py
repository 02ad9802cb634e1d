"""The controller of pytest-xdist: messages, reports, and the distribution of tests."""

from __future__ import annotations

import itertools
import socket
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from multiprocessing.connection import Listener
from types import SimpleNamespace
from typing import Any

import pytest
from xdist.remote import Producer

from lab.running import controller
from lab.running.controller import Controller, register_tests
from lab.running.reports import FewReports
from lab.running.scheduling import GroupScheduling
from lab.running.shares import server_of, servers_for
from lab.servers import Missing, Server, UnavailableError
from lab.servers.model import no_stop
from tests.reliability import Reliability
from tests.reliability.record import as_json, from_json

# --------------------------------------------------------------------------------------------------
# Messages from pytest-xdist workers to the controller, and back.


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the requested servers without starting them."""
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
    """Find this run's servers, which may be killed; record requests for others without starting them."""
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
    assert started == ["postgresql"]  # found without a way to kill it, like other people's servers
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


# --------------------------------------------------------------------------------------------------
# A worker reports every result and every detail of a failure, but not the setup of a passed test.

TESTS = """
    import pytest

    @pytest.fixture
    def broken(request):
        assert request.param != "setup"
        yield
        assert request.param != "teardown"

    def test_passes(): ...

    def test_fails(): assert False

    def test_leaves(): pytest.skip("here")

    @pytest.mark.skip
    def test_skipped(): ...

    @pytest.mark.xfail
    def test_known(): assert False

    @pytest.mark.parametrize("broken", ["setup", "teardown"], indirect=True)
    def test_with(broken): ...
"""


def test_each_result_and_all_of_a_failure_is_reported(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(TESTS)
    run = pytester.inline_run(path, "-p", "no:randomly", plugins=[FewReports()])
    found: dict[str, list[tuple[str, str]]] = {}
    for one in run.getreports("pytest_runtest_logreport"):
        found.setdefault(one.nodeid.partition("::")[2], []).append((one.when, one.outcome))
    setup, teardown = ("setup", "passed"), ("teardown", "passed")
    assert found == {
        "test_passes": [("call", "passed")],
        "test_fails": [setup, ("call", "failed"), teardown],
        "test_leaves": [setup, ("call", "skipped"), teardown],
        "test_skipped": [("setup", "skipped"), teardown],
        "test_known": [setup, ("call", "skipped"), teardown],
        "test_with[setup]": [("setup", "failed"), teardown],
        "test_with[teardown]": [setup, ("call", "passed"), ("teardown", "failed")],
    }
    for begun_or_over in ("logstart", "logfinish"):
        assert len(run.getcalls(f"pytest_runtest_{begun_or_over}")) == 7


@pytest.mark.parametrize(
    ("options", "enough"),
    [
        ({}, True),
        ({"reportchars": "a"}, True),
        ({"durations": 0}, False),
        ({"xmlpath": "results.xml"}, False),
        ({"maxfail": 1}, False),
        ({"reportchars": "aP"}, False),
        ({"reportchars": "A"}, False),
    ],
)
def test_options_that_need_all_reports(options: dict[str, Any], *, enough: bool) -> None:
    config: Any = SimpleNamespace(getoption={"reportchars": "", **options}.get)
    assert FewReports.are_enough(config) == enough


# --------------------------------------------------------------------------------------------------
# The tests of a group go to one worker; each runs once, and again if its worker dies.

GROUPS = {
    f"{group}{number}": group
    for group, tests in {"a": 3, "b": 4, "c": 5, "d": 6}.items()
    for number in range(tests)
}


class Worker:
    """Records every call."""

    shutting_down = False
    gateway = SimpleNamespace(id="gw")

    def __init__(self) -> None:
        self.given: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


@pytest.fixture
def workers() -> list[Any]:
    return [Worker(), Worker()]


@pytest.fixture
def scheduling(workers: list[Any]) -> GroupScheduling:
    """Start to distribute the tests to two workers."""
    config: Any = SimpleNamespace(
        getvalue=lambda _: ["popen"] * len(workers), option=SimpleNamespace(loadscopereorder=True)
    )
    made = GroupScheduling(config, Producer("", enabled=False), GROUPS)
    for worker in workers:
        made.add_node(worker)
        made.add_node_collection(worker, [*GROUPS])
    made.schedule()
    return made


def run_all(scheduling: GroupScheduling, worker: Any, *, done: int = 0) -> list[str]:
    """Make a worker run its tests, and return their names."""
    while done < len(worker.given):
        scheduling.mark_test_complete(worker, worker.given[done])
        done += 1
    return names(worker)


def names(worker: Any) -> list[str]:
    return [[*GROUPS][place] for place in worker.given]


def test_groups_are_handed_out_one_after_the_other_the_largest_first(
    scheduling: GroupScheduling, workers: list[Any]
) -> None:
    assert [names(worker)[0][0] for worker in workers] == ["d", "c"]
    assert scheduling.has_pending
    assert not scheduling.tests_finished
    done = [run_all(scheduling, worker) for worker in workers]
    assert sorted(itertools.chain(*done)) == sorted(GROUPS)
    assert all(len({GROUPS[name] for name in one}) < len(one) for one in done)
    assert scheduling.tests_finished
    assert not scheduling.has_pending
    assert all(worker.shutting_down for worker in workers)
    assert [scheduling.remove_node(worker) for worker in workers] == [None, None]


def test_what_a_worker_leaves_behind_is_run_by_another(
    scheduling: GroupScheduling, workers: list[Any]
) -> None:
    dying, other = workers
    scheduling.mark_test_complete(dying, dying.given[0])
    assert scheduling.remove_node(dying) == names(dying)[1]  # xdist reports that it crashed
    assert not scheduling.tests_finished
    assert {*run_all(scheduling, other)} == {*GROUPS} - {names(dying)[0]}
