"""Two nodes of a Galera cluster; or one line that says loudly why there are none.

The cluster is started for these tests alone. ``--databases`` or ``--own-logic-on`` without
``mariadb`` leaves them out, so that CI, which runs all tests twice, starts one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession
from tests.reliability.cluster.nodes import Nodes
from tests.support.actors import Actor
from tests.support.models import Base, refill
from tests.support.servers import galera
from tests.support.servers.model import UnavailableError
from tests.support.workers import note_skipped


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for another run, and mark the rest: to start the nodes takes long."""
    ours = [item for item in items if "cluster" in getattr(item, "fixturenames", ())]
    options = ("databases", "own_logic_on")
    if all("mariadb" in config.getoption(option).split(",") for option in options):
        for item in ours:
            item.add_marker("slow")
        return
    config.hook.pytest_deselected(items=ours)
    items[:] = [item for item in items if item not in ours]


@pytest.fixture(scope="session")  # a random order of modules goes in and out of the package
def cluster(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Start the nodes, with the tables of tests/support/models.py."""
    try:
        started = galera.start()
    except UnavailableError as exc:
        note_skipped(request.config, "GALERA CLUSTER", str(exc))
        pytest.skip(f"no Galera cluster: {exc}")
    nodes = Nodes(started)
    try:
        nodes.first.create(Base.metadata)
        yield nodes
    finally:
        nodes.close()
        started.stop()


@pytest.fixture
def nodes(cluster: Nodes) -> Iterator[Nodes]:
    """Put the rows of tests/support/models.py there, on both."""
    with cluster.first.engine().begin() as connection:
        refill(connection)
    cluster.catch_up()
    yield cluster
    cluster.dispose()


@pytest.fixture
def enter(nodes: Nodes) -> Iterator[Callable[[str, sa.Engine], Actor[LockingSession]]]:
    """Bring actors on by name, each on a node."""
    cast: list[Actor[LockingSession]] = []

    def enter_actor(name: str, engine: sa.Engine) -> Actor[LockingSession]:
        factory = sessionmaker(engine, class_=LockingSession)
        cast.append(Actor(name, factory, nodes.of(engine)))
        return cast[-1]

    yield enter_actor
    for actor in cast:
        actor.leave()
    for actor in cast:
        actor.join()


@pytest.fixture
def here(nodes: Nodes) -> sa.Engine:
    """Return an engine on the first node."""
    return nodes.first.engine()


@pytest.fixture
def there(nodes: Nodes) -> sa.Engine:
    """Return an engine on the second node."""
    return nodes.second.engine()


@pytest.fixture
def one(here: sa.Engine) -> Iterator[LockingSession]:
    """Open a session on the first node."""
    with LockingSession(here) as session:
        yield session


@pytest.fixture
def two(there: sa.Engine) -> Iterator[LockingSession]:
    """Open a session on the second node."""
    with LockingSession(there) as session:
        yield session
