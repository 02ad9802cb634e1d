"""A Galera cluster of MariaDB nodes on this machine, from Debian's package ``galera-4``.

The nodes transfer no state, because that needs programs that are not unpacked here. Every other node
starts with a copy of the first node's data, and declares the cluster's current position.
"""

from __future__ import annotations

import secrets
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from lab.servers import debian, mariadb, mysqld
from lab.servers.flavour import oldest_wanted
from lab.servers.model import EndedError, Server, UnavailableError
from lab.servers.process import free_port, new_folder

_OPTIONS = (
    "--wsrep-on=ON",
    "--wsrep-cluster-name=doclock",
    "--wsrep-sst-method=skip",
    "--binlog-format=ROW",
    "--innodb-autoinc-lock-mode=2",
    "--innodb-log-file-size=8M",  # there are two of them, and little is written
)
# If a node gets no CPU time for some seconds, the others must not take it for dead.
_PATIENCE = (
    "evs.suspect_timeout=PT60S;evs.inactive_timeout=PT90S;evs.install_timeout=PT90S;"
    "gmcast.peer_timeout=PT60S;"
)
_FILES = "gcache.size=16M;pc.recovery=false"


@dataclass(frozen=True)
class Cluster:
    """Servers with the same rows; all of them accept writes."""

    nodes: tuple[Server, ...]
    stop: Callable[[], None]


def start(size: int = 2, *, patient: bool = True, tries: int = 3) -> Cluster:
    """Start the nodes, and wait until each sees all the others.

    :param size: after the loss of a node, a cluster needs more than half of its nodes: two of three.
    :param patient: False: use Galera's own limits, after which a silent node counts as dead.
    :raises UnavailableError: no such server or provider is here, or the nodes do not join.
    """
    try:
        return _start(size, _PATIENCE if patient else "")
    except EndedError:  # another process took the port
        if tries == 1:
            raise
        return start(size, patient=patient, tries=tries - 1)


def _start(size: int, patience: str) -> Cluster:
    program, share, options, origin = mariadb.installation()
    options = [*options, *_OPTIONS, f"--wsrep-provider={_provider(program)}"]
    peers = [free_port() for _ in range(size)]
    options.append(f"--wsrep-cluster-address=gcomm://{','.join(map(_address, peers))}")
    with ExitStack() as stack:
        folders = [stack.enter_context(new_folder()) for _ in peers]
        mariadb.make_data(program, share, _without_wsrep(options), folders[0] / "data")
        for folder in folders[1:]:
            shutil.copytree(folders[0] / "data", folder / "data")
        cluster, password = uuid.uuid4(), secrets.token_hex(8)
        nodes = []
        for number, folder in enumerate(folders):
            # The start of each node is a transaction of the cluster, counted from 1.
            _say_position(folder / "data", cluster, number, bootstrap=not number)
            of_node = [
                *options,
                *_addresses(peers[number], patience),
                *["--wsrep-new-cluster"] * (not number),
            ]
            node = mysqld.start(
                "mariadb", program, of_node, folder, origin, first=_LOCAL, password=password
            )
            stack.callback(node.stop)
            nodes.append(node)
        for node in nodes:
            _wait_until_all(node.url, size)
        started = stack.pop_all()
    return Cluster(tuple(nodes), started.close)


_LOCAL = "SET SESSION wsrep_on = OFF;"  # not a cluster transaction, which would change the count


def _provider(program: Sequence[str]) -> Path:
    """Find libgalera_smm.so, of an installed server or else of the server's suite."""
    installed = ("/usr/lib/galera", "/usr/lib64/galera-4", "/usr/lib64/galera", "/usr/lib")
    if len(program) == 1:
        found = [path for path in map(Path, installed) if (path / "libgalera_smm.so").exists()]
        if not found:
            msg = "the installed MariaDB has no libgalera_smm.so beside it"
            raise UnavailableError(msg)
        return found[0] / "libgalera_smm.so"
    suite = "bookworm" if oldest_wanted() else "sid"
    root = debian.unpacked_alone("galera-4", suite=suite, licence="GPL-2.0")
    return root / "usr/lib/libgalera_smm.so"


def _without_wsrep(options: Sequence[str]) -> list[str]:
    return [option for option in options if not option.startswith("--wsrep")]


def _say_position(data: Path, cluster: uuid.UUID, position: int, *, bootstrap: bool) -> None:
    (data / "grastate.dat").write_text(
        "# GALERA saved state\nversion: 2.1\n"
        f"uuid:    {cluster}\nseqno:   {position}\nsafe_to_bootstrap: {bootstrap:d}\n",
        encoding="ascii",
    )


def _addresses(port: int, patience: str) -> list[str]:
    transfers = _address(free_port())
    listens = f"gmcast.listen_addr=tcp://{_address(port)};ist.recv_addr={transfers}"
    provider = f"{listens};{patience}{_FILES}"
    return [f"--wsrep-node-address={_address(port)}", f"--wsrep-provider-options={provider}"]


def _address(port: int) -> str:
    return f"127.0.0.1:{port}"


def _wait_until_all(url: str, size: int, seconds: float = 60) -> None:
    engine = sa.create_engine(url, poolclass=NullPool)
    deadline = time.monotonic() + seconds
    wanted = {"wsrep_ready": "ON", "wsrep_local_state_comment": "Synced"}
    wanted["wsrep_cluster_size"] = str(size)
    while True:
        with engine.connect() as connection:
            rows = connection.execute(sa.text("SHOW STATUS LIKE 'wsrep_%'"))
            found = {name: value for name, value in rows if name in wanted}
        if found == wanted:
            return
        if time.monotonic() > deadline:
            msg = f"the nodes have not come together within {seconds:g} s: {found}"
            raise UnavailableError(msg)
        time.sleep(0.05)
