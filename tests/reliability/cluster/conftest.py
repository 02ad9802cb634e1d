"""The two nodes of a cluster, as tests use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from lab.running.workers import check_required, note_skipped
from lab.servers import Server, galera, group_replication
from lab.servers.model import UnavailableError
from sa_doclock import LockingSession
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Base, Line, Order, refill

Seen = tuple[int, list[int]]

# A read waits until the node applies the other node's earlier commits.
_CAUGHT_UP = {
    "mariadb": "SET SESSION wsrep_sync_wait = 15",
    "mysql": "SET SESSION group_replication_consistency = 'BEFORE'",
}


class Nodes:
    """A database on each of two servers, with the same rows."""

    def __init__(self, servers: Sequence[Server]) -> None:
        """Describe a running cluster."""
        self.first, self.second = (Database(one.name, one.url, one.version) for one in servers)

    def catch_up(self) -> None:
        """Return once each node has applied all commits of the other.

        By then, transactions in their way have ended.
        """
        for node in (self.first, self.second):
            self._read(node, sa.select(1))

    def seen(self) -> Seen:
        """Return order 1 as both nodes see it: its total, and the values of its lines.

        :raises AssertionError: the nodes disagree.
        """
        on_first, on_second = (self._seen_on(node) for node in (self.first, self.second))
        assert on_first == on_second
        return on_first

    def dispose(self) -> None:
        for node in (self.first, self.second):
            for engine in node._engines:
                engine.dispose()
            node._engines.clear()

    def close(self) -> None:
        self.dispose()
        self.first.close()

    def of(self, engine: sa.Engine) -> Database:
        """Return the node of an engine."""
        return self.first if engine in self.first._engines else self.second

    def _seen_on(self, node: Database) -> Seen:
        totals = self._read(node, sa.select(Order.total).where(Order.id == 1))
        values = sa.select(Line.value).where(Line.order_id == 1).order_by(Line.id)
        return totals[0], self._read(node, values)

    def _read(self, node: Database, statement: sa.Select[Any]) -> list[Any]:
        with node.observer().connect() as connection:
            connection.exec_driver_sql(_CAUGHT_UP[node.name])
            return list(connection.scalars(statement))


# --------------------------------------------------------------------------------------------------
# A cluster of two nodes that both accept writes, or one prominent line that says why it is missing.
#
# Each test runs on MariaDB with Galera, and on MySQL with Group Replication. The clusters start only
# for these tests. ``--databases`` without ``mariadb``, or without ``mysql``, leaves them out.


class Started(Protocol):
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
    """Run a test that uses ``cluster`` once on each cluster."""
    if "cluster" in metafunc.fixturenames:
        only = metafunc.definition.get_closest_marker("only_on")
        metafunc.parametrize("cluster", only.args if only else CLUSTERS, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of another run, and mark the rest: starting the nodes takes long."""
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


@pytest.fixture(scope="session")  # a random order of modules enters and leaves the package
def clusters() -> Iterator[dict[str, Nodes]]:
    """Keep the clusters for all tests; each starts when a test first needs it."""
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
    try:
        return clusters[request.param]
    except UnavailableError as exc:
        check_required(request.param, str(exc))
        note_skipped(request.config, f"CLUSTER {request.param}", str(exc))
        pytest.skip(f"no {request.param}: {exc}")


@pytest.fixture
def nodes(cluster: Nodes) -> Iterator[Nodes]:
    """Insert the rows of tests/support/models.py on both nodes."""
    with cluster.first.engine().begin() as connection:
        refill(connection)
    cluster.catch_up()
    yield cluster
    cluster.dispose()


@pytest.fixture
def enter(nodes: Nodes) -> Iterator[Callable[[str, sa.Engine], Actor[LockingSession]]]:
    """Create actors by name, each on a node."""
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
    return nodes.first.engine()


@pytest.fixture
def there(nodes: Nodes) -> sa.Engine:
    return nodes.second.engine()


@pytest.fixture
def one(here: sa.Engine) -> Iterator[LockingSession]:
    with LockingSession(here) as session:
        yield session


@pytest.fixture
def two(there: sa.Engine) -> Iterator[LockingSession]:
    with LockingSession(there) as session:
        yield session
