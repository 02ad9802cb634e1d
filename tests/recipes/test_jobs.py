"""Jobs: cron, jobs that fail, the outbox, the leader."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sa_doclock import CheckoutLost
from tests.recipes.conftest import Recipe, text_of_program
from tests.recipes.load import at_once, breaks, run_until_one_ends, start, without
from tests.support.databases import Database

# --------------------------------------------------------------------------------------------------
# Cron on many hosts: each tick's work is saved once, whatever fails or is killed.

TICKS = range(1, 7)
UNLOCKED = (
    'session.get_or_create_entity(Schedule, name, lock, defaults={"last": 0})',
    "session.get(Schedule, name) or session.merge(Schedule(name=name, last=0)), True",
)
KILLED = """

import os
import signal
from uuid import uuid4


def work(session: LockingSession, tick: int) -> None:
    session.add(Schedule(name=f"effect {tick} {uuid4()}", last=tick))
    session.flush()
    try:
        os.mkdir(f"tick {tick}")
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)  # the first host that has come so far


for tick in 1, 2:
    while not run_once("invoices", tick, lambda session: work(session, tick)):
        with Session() as session:
            schedule = session.get(Schedule, "invoices")
            if schedule is not None and schedule.last >= tick:
                break
"""


def check(program: Any, ticks: Iterable[int]) -> None:
    with program.Session() as session:
        every = session.scalars(sa.select(program.Schedule)).all()
    done = Counter(one.last for one in every if one.name.startswith("effect"))
    assert done == dict.fromkeys(ticks, 1)


def load(program: Any) -> None:
    failed: set[int] = set()
    with program.Session.begin() as session:
        session.execute(sa.delete(program.Schedule))

    def work(tick: int, host: int, session: Any) -> None:
        session.add(program.Schedule(name=f"effect {tick} {host}", last=tick))
        session.flush()
        if tick % 2 and tick not in failed:
            failed.add(tick)
            raise ValueError("for its own reason")

    for tick in TICKS:
        answers: list[Any] = []
        while True not in answers:
            calls = [partial(program.run_once, "x", tick, partial(work, tick, n)) for n in range(8)]
            answers += at_once(calls, ValueError)
        assert answers.count(True) == 1
    check(program, TICKS)


def test_each_tick_is_done_once(recipe: Recipe) -> None:
    load(recipe("cron"))


@pytest.mark.slow
@pytest.mark.not_databases("sqlite-journal")
def test_another_host_does_what_a_killed_one_began(
    recipe: Recipe, database: Database, tmp_path: Path
) -> None:
    program = recipe("cron")
    run_until_one_ends(text_of_program("cron") + KILLED, database.url, tmp_path)
    check(program, (1, 2))


@pytest.mark.databases("postgresql")
def test_without_the_lock_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe("cron", UNLOCKED)
    assert breaks(lambda: load(program), DBAPIError)


# --------------------------------------------------------------------------------------------------
# Failing jobs: each runs once or is given up after its attempts, even if it kills the worker.

AT_ONCE = ("PAUSE = timedelta(seconds=10)", "PAUSE = timedelta(0)")
UNLOCKED_FAILING = (
    ("from collections.abc import Callable", "from contextlib import nullcontext"),
    ("Callable[[LockingSession, Job], None]", "object"),
    (
        "with Session() as session, session.locked(Job, ident) as job:",
        "with Session.begin() as session, nullcontext(session.get(Job, ident)) as job:",
    ),
)
WORK = """

def work(session: LockingSession, job: Job) -> None:
    session.add(Job(address=f"effect {job.id}", state="effect"))
    session.flush()
    if job.address == "fails" or (job.address == "fails twice" and job.attempts < 3):
        raise ValueError("for its own reason")
    if job.address == "kills":
        os.kill(os.getpid(), signal.SIGKILL)


def run_all() -> None:
    ready = select(Job.id).where(Job.state == "ready")
    while True:
        with Session() as session:
            if session.execute(ready).first() is None:
                return
        run_due(work)
"""
KILLED_FAILING = "\n\nimport os\nimport signal\n" + WORK + "\n\nrun_all()\n"


def fill(program: Any, *kinds: str, times: int = 1) -> None:
    with program.Session.begin() as session:
        session.execute(sa.delete(program.Job))
        session.add_all(program.Job(address=kind) for kind in kinds * times)


def check_failing(program: Any) -> None:
    with program.Session() as session:
        every = session.scalars(sa.select(program.Job)).all()
    effects = Counter(int(one.address.split()[1]) for one in every if one.state == "effect")
    jobs = [one for one in every if one.state != "effect"]
    for job in jobs:
        if job.address in ("fails", "kills"):
            found = (job.state, job.attempts, effects[job.id])
            assert found == ("given up", program.MOST, 0)
        else:
            assert (job.state, effects[job.id]) == ("done", 1)
            assert job.attempts >= (3 if job.address == "fails twice" else 1)
        if job.address == "kills":
            assert job.error == "each attempt ended its process"


def load_failing(program: Any) -> None:
    fill(program, "good", "fails", "fails twice", times=4)
    exec(WORK, vars(program))
    at_once([program.run_all] * 6)
    check_failing(program)


def test_each_job_is_done_once_or_given_up(recipe: Recipe) -> None:
    load_failing(recipe("failing-jobs", AT_ONCE))


@pytest.mark.slow
@pytest.mark.not_databases("sqlite-journal")
def test_a_poison_job_has_its_attempts(recipe: Recipe, database: Database, tmp_path: Path) -> None:
    program = recipe("failing-jobs", AT_ONCE)
    fill(program, "good", "kills", "fails twice", "good")
    text = text_of_program("failing-jobs").replace(*AT_ONCE)
    died = run_until_one_ends(text + KILLED_FAILING, database.url, tmp_path)
    check_failing(program)
    assert 0 < died <= program.MOST


@pytest.mark.databases("postgresql")
def test_without_the_lock_it_goes_wrong_failing(recipe: Recipe) -> None:
    program = recipe("failing-jobs", AT_ONCE, *UNLOCKED_FAILING)
    assert breaks(lambda: load_failing(program))


# --------------------------------------------------------------------------------------------------
# The outbox: workers are killed before and after they send, and each order's message arrives.

ORDERS = 12
SEND = "            send(message.id, message.text)\n"
EARLY = (
    "            ident, text = message.id, message.text\n"
    "            claim.session.on_commit(lambda ident=ident, text=text: send(ident, text))\n"
)
FATE = '''

import os
import signal


def send(ident: int, text: str) -> None:
    """Write the message down; some workers die before it, and some after it."""
    fate = (ident + os.getpid()) % 7
    if fate == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with open("arrived", "a") as arrived:
        arrived.write(text + "\\n")
    if fate == 1:
        os.kill(os.getpid(), signal.SIGKILL)


send_all(send)
'''


def arrived(
    recipe: Recipe, database: Database, folder: Path, change: tuple[str, str] = ("", "")
) -> tuple[list[str], int]:
    """Place orders while workers send and die; return the lost messages, and the unexplained duplicates."""
    program = recipe("outbox")
    at_once([partial(program.place_order, f"customer {n}") for n in range(ORDERS)])
    text = text_of_program("outbox")
    assert change[0] in text
    text = text.replace(*change) if change[0] else text
    (folder / "arrived").touch()
    died = run_until_one_ends(text + FATE, database.url, folder)
    with program.Session() as session:
        wanted = session.scalars(sa.select(program.Message.text)).all()
        left = session.scalars(sa.select(program.Message.text).where(~program.Message.sent)).all()
    found = (folder / "arrived").read_text(encoding="utf-8").splitlines()
    assert set(found) <= set(wanted)
    return [text for text in wanted if text not in found and text not in left], len(found) - len(
        set(found)
    ) - died


@pytest.mark.slow
@pytest.mark.not_databases("sqlite-journal")
def test_each_message_arrives(recipe: Recipe, database: Database, tmp_path: Path) -> None:
    lost, twice_without_a_death = arrived(recipe, database, tmp_path)
    assert lost == []
    assert twice_without_a_death <= 0


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.databases("postgresql")
def test_sent_after_the_commit_it_can_be_lost(
    recipe: Recipe, database: Database, tmp_path: Path
) -> None:
    lost, _ = arrived(recipe, database, tmp_path, (SEND, EARLY))
    assert lost


# --------------------------------------------------------------------------------------------------
# A leader: an old leader's writes never come after its successor's.

UNLOCKED_LEADER = (
    'with Session() as session, session.locked(Role, "scheduler", checkout=epoch):',
    'with LockingSession(engine) as session, session.locked(Role, "scheduler"):',
)
SHORT = ("LEASE = timedelta(seconds=15)", "LEASE = timedelta(seconds=1)")
KILLED_LEADER = """

import os
import signal

with as_leader(lead("killed")) as session:
    session.add(Assignment(epoch=1, text="never saved"))
    session.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def first_leader(program: Any) -> None:
    with program.Session.begin() as session:
        session.add(program.Role(name="scheduler"))
    assert program.lead("first") == 1


def work(program: Any) -> int:
    """Lead as if the previous leader's lease had expired, and write twice."""
    with program.Session.begin() as session:
        mine = session.take_over(program.Role, "scheduler", program.new_process())
    for text in "first", "second":
        with program.as_leader(mine.epoch) as session:
            session.add(program.Assignment(epoch=mine.epoch, text=text))
    return int(mine.epoch)


def write_by_forty_leaders(program: Any) -> None:
    answers = at_once([partial(work, program)] * 40, CheckoutLost)
    assert without(CheckoutLost, of=answers)
    with program.Session() as session:
        found = sa.select(program.Assignment.epoch).order_by(program.Assignment.id)
        epochs = session.scalars(found).all()
    assert epochs == sorted(epochs)


def test_who_leads_no_more_writes_no_more(recipe: Recipe) -> None:
    program = recipe("leader")
    first_leader(program)
    write_by_forty_leaders(program)


def test_of_many_that_ask_one_leads(recipe: Recipe) -> None:
    program = recipe("leader")
    first_leader(program)
    with program.Session.begin() as session:
        session.check_in(session.checkout_of(program.Role, "scheduler"))
    answers = at_once([partial(program.lead, f"process {n}") for n in range(16)])
    assert sorted(answers, key=bool)[-2:] == [None, 2]


@pytest.mark.slow
@pytest.mark.not_databases("sqlite-journal")
def test_after_the_lease_of_one_that_was_killed_another_leads(
    recipe: Recipe, database: Database, tmp_path: Path
) -> None:
    program = recipe("leader", SHORT)
    with program.Session.begin() as session:
        session.add(program.Role(name="scheduler"))
    text = text_of_program("leader").replace(*SHORT)
    assert start(text + KILLED_LEADER, database.url, tmp_path).wait(60) == -signal.SIGKILL
    epoch = None
    while epoch is None:
        epoch = program.lead("other")
    assert epoch == 2
    with program.as_leader(epoch) as session:
        assert session.scalars(sa.select(program.Assignment)).all() == []


@pytest.mark.databases("postgresql")
def test_without_the_epoch_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe("leader", UNLOCKED_LEADER)
    first_leader(program)
    assert breaks(lambda: write_by_forty_leaders(program))
