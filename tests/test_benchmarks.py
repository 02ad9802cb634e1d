"""The scripts of benchmarks/: their goals, rounds and proxy, and that each runs."""

from __future__ import annotations

import importlib
import math
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from benchmarks.__main__ import RESULTS, SCRIPTS
from benchmarks.goals import AT_LEAST, GOALS, REASONS, Goal
from benchmarks.lab import report
from benchmarks.lab.figures import Figure, Findings
from benchmarks.lab.pairing import Effort, Spent, compare, interval, ratio
from benchmarks.lab.proxy import BACK, THERE, Chunk, Proxy, Recording
from tests.support.databases import Database

# --------------------------------------------------------------------------------------------------
# A script of benchmarks/, run in this process with the least possible measuring.

Run = Callable[[str, str, str], Findings]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a script on one database; return the contents of its JSON."""

    def run_script(name: str, database: str, url: str) -> Findings:
        path = tmp_path / f"{name}.json"
        where = ["--databases", database, "--url", f"{database}={url}"]
        pictures = ["--plot", str(tmp_path / "pictures")]
        module = importlib.import_module(f"benchmarks.{name}")
        module.main(["--tiny", *where, "--json", str(path), *pictures])
        return Findings.read(path)

    return run_script


# --------------------------------------------------------------------------------------------------
# Every goal has a figure's name and a verdict, and a reason if it is missed.

GOAL = Goal("Speed", "update", "overhead.sqlite.update", 0.96)
RATE = Goal("Speed", "updates a second", "overhead.sqlite.rate", 2.0, AT_LEAST)


def verdict(goal: Goal, found: Findings, **reasons: str) -> report.Verdict:
    (one,) = report.verdicts([found], [goal], {k.replace("_", "."): v for k, v in reasons.items()})
    return one


def measured(name: str, value: float) -> Findings:
    found = Findings("overhead")
    found.note(name, Figure(value, value - 0.01, value + 0.01))
    return found


def test_a_goal_is_asked_for_once() -> None:
    names = [goal.figure for goal in GOALS]
    assert len(set(names)) == len(names)
    assert {name.split(".")[0] for name in names} <= set(SCRIPTS)


def test_a_reason_is_given_for_a_goal() -> None:
    groups = [f"{goal.figure}." for goal in GOALS]
    for name in REASONS:
        assert any(group.startswith(f"{name}.") for group in groups), name


@pytest.mark.parametrize(
    ("goal", "value", "word"),
    [
        (GOAL, 0.96, "met"),
        (GOAL, 0.97, "**missed**"),
        (RATE, 2.0, "met"),
        (RATE, 1.9, "**missed**"),
    ],
)
def test_a_figure_meets_its_goal_or_does_not(goal: Goal, value: float, word: str) -> None:
    name = goal.figure.partition(".")[2]
    assert verdict(goal, measured(name, value)).word == word


def test_a_goal_that_is_missed_has_the_reason_that_somebody_wrote() -> None:
    found = measured("sqlite.update", 1.2)
    assert verdict(GOAL, found, overhead_sqlite="the disk").reason == "the disk"
    assert verdict(GOAL, found).reason == report.NOT_EXPLAINED
    assert verdict(GOAL, measured("sqlite.update", 0.9), overhead_sqlite="the disk").reason == ""


def test_a_figure_that_is_missing_has_the_reason_that_the_script_gave() -> None:
    found = Findings("overhead")
    assert verdict(GOAL, found).reason == report.NOT_MEASURED
    found.lacks("", "it has failed")
    assert verdict(GOAL, found).reason == "it has failed"
    found.lacks("sqlite", "no such file")
    assert verdict(GOAL, found, overhead="written by hand").reason == "no such file"
    assert verdict(GOAL, found).word == "no figure"


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    found = measured("sqlite.update", 0.9)
    found.lacks("mysql", "no server")
    found.servers["sqlite"] = "SQLite 3"
    found.write(tmp_path / "found.json")
    assert vars(Findings.read(tmp_path / "found.json")) == vars(found)


def test_the_page_has_every_goal() -> None:
    """After a change of goals: python -m benchmarks --results benchmarks/RESULTS.md."""
    written = RESULTS.read_text(encoding="utf-8")
    for goal in GOALS:
        assert f"## {goal.group}\n" in written
        assert f"| {goal.what} | {goal.wanted} |" in written


def test_the_page_tells_the_machine_and_the_servers() -> None:
    page = report.markdown(
        report.verdicts([measured("sqlite.update", 0.9)], [GOAL], {}),
        {"cores": "2"},
        {"sqlite": "SQLite 3.40"},
        ["pictures/scale.svg"],
    )
    assert "| cores | 2 |" in page
    assert "| servers | SQLite 3.40 |" in page
    assert "| update | <= 0.96 x | 0.900 [0.890 .. 0.910] | met |  |" in page
    assert "(pictures/scale.svg)" in page


# --------------------------------------------------------------------------------------------------
# Two ways are compared round by round, so that a busy moment affects both.


@pytest.mark.slow
@pytest.mark.exhaustive
def test_every_way_is_run_as_often_in_every_round() -> None:
    calls = {"one": 0, "other": 0}

    def way(name: str) -> None:
        calls[name] += 1

    ways = {name: partial(way, name) for name in calls}
    rounds = compare(ways, Effort(seconds=0, rounds=4, repeat=3))
    assert [len(found) for found in rounds.values()] == [4, 4]
    assert calls == {"one": 12, "other": 12}


def test_a_ratio_is_that_of_the_same_round() -> None:
    busy, idle = Spent(cpu=4.0, wall=40.0), Spent(cpu=2.0, wall=20.0)
    half = [Spent(cpu=2.0, wall=10.0), Spent(cpu=1.0, wall=5.0)]
    rounds = {"way": half, "by hand": [busy, idle]}
    assert ratio(rounds, "way", "by hand", "cpu") == (0.5, 0.5, 0.5)
    assert ratio(rounds, "way", "by hand", "wall") == (0.25, 0.25, 0.25)


def test_an_interval_holds_the_median_and_not_the_outlier() -> None:
    found = interval([1.0, 1.1, 1.2, 1.0, 1.1, 1.2, 1.1, 1.0, 9.0])
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.value == 1.1 <= found.high < 9


# --------------------------------------------------------------------------------------------------
# The proxy passes everything through, and counts the traffic.


def there(*statements: str, locks: bool = False, releases: bool = False) -> Chunk:
    return Chunk(0.0, THERE, statements, locks, releases)


answer = Chunk(0.0, BACK, (), locks=False, releases=False)


def test_a_round_trip_is_a_wait_for_the_server() -> None:
    chunks = [there("SELECT"), there("SELECT"), answer, answer, there("COMMIT"), answer]
    assert Recording(chunks).round_trips == 2


def test_a_lock_is_held_from_its_grant_to_the_first_release() -> None:
    lock, release = there("SELECT", locks=True), there("COMMIT", releases=True)
    begin, change = there("BEGIN"), there("UPDATE")
    turns = [begin, lock, change, change, release, release]
    assert Recording([chunk for turn in turns for chunk in (turn, answer)]).held == 3
    together = there("SELECT", "COMMIT", locks=True, releases=True)
    assert Recording([begin, answer, together, answer]).held == 0


def test_without_a_lock_there_is_nothing_to_hold() -> None:
    with pytest.raises(ValueError, match="no lock"):
        _ = Recording([there("SELECT"), answer]).held
    with pytest.raises(ValueError, match="no release"):
        _ = Recording([there("SELECT", locks=True), answer]).held


@pytest.fixture
def echo() -> Iterator[int]:
    """Answer every message on this port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_one, args=(listener,))
        thread.start()
        yield int(listener.getsockname()[1])
        thread.join()


def answer_one(listener: socket.socket) -> None:
    client, _ = listener.accept()
    with client, suppress(OSError):
        while said := client.recv(100):
            client.sendall(said)


@pytest.mark.parametrize("delay", [0.0, 0.001])
def test_it_counts_what_it_passes_on(echo: int, delay: float) -> None:
    proxy = Proxy("127.0.0.1", echo)
    try:
        proxy.delay(delay)
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            assert said(client, b"before") == b"before"
            with proxy.recording() as recordings:
                for line in (b"BEGIN", b"SELECT 1 FOR UPDATE", b"UPDATE x SET y", b"COMMIT"):
                    assert said(client, line) == line
            assert said(client, b"after") == b"after"
    finally:
        proxy.close()
    (recording,) = recordings
    assert (recording.round_trips, recording.held) == (4, 2)
    assert recording.chunks[4].statements == ("UPDATE",)
    assert recording.chunks[2].statements == ("SELECT", "FOR UPDATE")


def said(client: socket.socket, line: bytes) -> bytes:
    client.sendall(line)
    return client.recv(100)


# --------------------------------------------------------------------------------------------------
# Each script runs: its figures have names and values, its goals a figure or a reason.

ON_SQLITE = ("overhead", "documents", "stress", "details", "linear", "sessions", "guard")


def check(found: Findings, database: str) -> None:
    assert found.servers.keys() == {database}
    assert any(name.split(".")[1] == database for name in found.figures)
    for name, figure in found.figures.items():
        assert name.split(".")[0] == found.script
        assert math.isfinite(figure.value), name
        assert figure.low is None or figure.high is None or figure.low <= figure.high, name
    wrong = [name for name in found.figures if name.endswith((".errors", ".wrong_documents"))]
    assert [name for name in wrong if found.figures[name].value != 0] == []
    own = [goal for goal in GOALS if goal.figure.split(".")[0] == found.script]
    for verdict in report.verdicts([found], own):
        assert verdict.figure is not None or verdict.reason != report.NOT_MEASURED, verdict.goal


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ON_SQLITE)
def test_a_script_runs_on_sqlite(run: Run, tmp_path: Path, name: str) -> None:
    found = run(name, "sqlite", f"sqlite:///{tmp_path / 'benchmark.db'}")
    check(found, "sqlite")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("name", sorted({*SCRIPTS} - {*ON_SQLITE, "layers"}))
def test_a_script_runs_on_postgresql(run: Run, database: Database, name: str) -> None:
    check(run(name, "postgresql", database.url), "postgresql")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.databases("postgresql")
def test_the_round_trips_are_those_that_the_driver_makes(run: Run, database: Database) -> None:
    found = run("layers", "postgresql", database.url)
    check(found, "postgresql")
    figures = found.figures

    def trips(way: str, operation: str) -> tuple[float, float]:
        group = f"layers.postgresql.{way}.{operation}"
        return figures[f"{group}.round_trips"].value, figures[f"{group}.held"].value

    assert (trips("raw", "update"), trips("raw", "load")) == ((6, 4), (4, 2))
    assert (trips("raw_pipelined", "update"), trips("raw_pipelined", "load")) == ((2, 1), (1, 0))
    assert trips("orm", "update") == (6, 4)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_what_it_measures(name: str) -> None:
    first = (importlib.import_module(f"benchmarks.{name}").__doc__ or "").split("\n\n")[0]
    assert first.startswith(("Measure ", "Compare "))
    assert first.endswith(".")


def test_a_database_that_is_not_there_is_a_reason(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SA_DOCLOCK_TEST_MYSQL_URL", raising=False)
    found = run("stress", "mysql", "")
    assert found.figures == {}
    assert "SA_DOCLOCK_TEST_MYSQL_URL" in found.missing["stress.mysql"]
