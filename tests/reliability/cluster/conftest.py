"""Two nodes of a cluster that both take writes; or one line that says loudly why there are none.

Each test runs on MariaDB with Galera, and on MySQL with Group Replication. The clusters are started for
these tests alone. ``--databases`` without ``mariadb``, or without ``mysql``, leaves them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Protocol

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from lab.running.workers import check_required, note_skipped
from lab.servers import Server, galera, group_replication
from lab.servers.model import UnavailableError
from sa_doclock import LockingSession
from tests.reliability.cluster.nodes import Nodes
from tests.support.actors import Actor
from tests.support.models import Base, refill


class Started(Protocol):
    """A cluster that was started."""

    @property
    def nodes(self) -> tuple[Server, ...]: ...
    @property
    def stop(self) -> Callable[[], None]: ...


CLUSTERS: Mapping[str, tuple[str, Callable[[], Started]]] = {
    "galera": ("mariadb", galera.start),
    "group-replication": ("mysql", partial(group_replication.start, 2, several_primaries=True)),
}
"""By name: the database, and how to start two nodes."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses ``cluster`` once on each."""
    if "cluster" in metafunc.fixturenames:
        only = metafunc.definition.get_closest_marker("only_on")
        metafunc.parametrize("cluster", only.args if only else CLUSTERS, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for another run, and mark the rest: to start the nodes takes long."""
    databases = config.getoption("databases").split(",")
    others = []
    for item in items:
        if isinstance(item, pytest.Function) and "cluster" in item.fixturenames:
            database, _ = CLUSTERS[str(item.callspec.params["cluster"])]
            if database in databases:
                item.add_marker("slow")
                item.add_marker("exhaustive")
            else:
                others.append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")  # a random order of modules goes in and out of the package
def clusters() -> Iterator[dict[str, Nodes]]:
    """Keep the clusters for all tests, started when the first test asks for them."""
    with ExitStack() as stack:
        yield _Kept(stack)


class _Kept(dict[str, Nodes]):
    def __init__(self, stack: ExitStack) -> None:
        super().__init__()
        self._stack = stack

    def __missing__(self, name: str) -> Nodes:
        """Start the nodes, with the tables of tests/support/models.py."""
        _, start = CLUSTERS[name]
        started = start()
        self._stack.callback(started.stop)
        nodes = Nodes(started.nodes)
        self._stack.callback(nodes.close)
        nodes.first.create(Base.metadata)
        self[name] = nodes
        return nodes


@pytest.fixture
def cluster(request: pytest.FixtureRequest, clusters: dict[str, Nodes]) -> Nodes:
    """Give the test one of the clusters."""
    try:
        return clusters[request.param]
    except UnavailableError as exc:
        check_required(request.param, str(exc))
        note_skipped(request.config, f"CLUSTER {request.param}", str(exc))
        pytest.skip(f"no {request.param}: {exc}")


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
