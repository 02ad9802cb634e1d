"""The waits of a server as trees, in which each connection appears once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...wait_info import LockConnection, LockWait


@dataclass(eq=False)
class Node:
    """A connection of a tree.

    :ivar tree: the id of the root's connection.
    :ivar wait: its wait for the connection above; None: it is the root.
    :ivar waiters: the connections below, which wait for it.
    :ivar behind: the number of connections below, on all levels.
    :ivar others: connections of other trees for which it also waits.
    :ivar closes: in the root of a wait cycle, its own wait for a connection below; else None.
    :ivar circles: waits of connections above it, or its own, for this one: a deadlock.
    :ivar place: its number in the tree from top to bottom, with contiguous branches.
    """

    connection: LockConnection
    tree: int
    wait: LockWait | None = None
    waiters: list[Node] = field(default_factory=list)
    behind: int = 0
    others: list[LockConnection] = field(default_factory=list)
    closes: LockWait | None = None
    circles: list[LockWait] = field(default_factory=list)
    place: int = 0

    @property
    def waiting(self) -> int:
        """The number of connections that wait in the tree with this one on top."""
        return self.behind + (self.closes is not None)

    def is_above(self, other: Node) -> bool:
        """Return whether the other one is below this one, or is this one."""
        same_tree = self.tree == other.tree
        return same_tree and self.place <= other.place <= self.place + self.behind

    def from_top(self) -> Iterator[Node]:
        """Yield this node and those below, level by level."""
        queue = deque([self])
        while queue:
            node = queue.popleft()
            yield node
            queue += node.waiters


def forest_of(waits: Sequence[LockWait]) -> list[Node]:
    """Return a tree for each connection for which others wait and that does not wait itself.

    A connection is as near to the root as possible; the longest waiters come first, and so does the
    tree with the most connections.  A wait cycle, which the server will soon end as a deadlock, has
    no such connection: one of its members is the root.

    :param waits: the longest first.
    """
    waits_for: dict[int, list[LockWait]] = {}
    blockers: dict[int, LockConnection] = {}
    first_blocker: dict[int, int] = {}
    for wait in waits:
        waits_for.setdefault(wait.blocker.connection_id, []).append(wait)
        blockers.setdefault(wait.blocker.connection_id, wait.blocker)
        first_blocker.setdefault(wait.waiter.connection_id, wait.blocker.connection_id)
    nodes: dict[int, Node] = {}
    tops = [
        _grow(blocker, waits_for, nodes)
        for connection_id, blocker in blockers.items()
        if connection_id not in first_blocker
    ]
    for connection_id in blockers:
        if connection_id not in nodes:
            in_circle = blockers[_in_circle(connection_id, first_blocker)]
            tops.append(_grow(in_circle, waits_for, nodes))
    for top in tops:
        _measure(top)
    _note_other_waits(waits, nodes)
    return sorted(tops, key=lambda top: -top.waiting)


def _grow(
    top: LockConnection, waits_for: dict[int, list[LockWait]], nodes: dict[int, Node]
) -> Node:
    """Return the tree of every connection behind this one that has no place yet."""
    root = nodes[top.connection_id] = Node(top, top.connection_id)
    for node in root.from_top():  # includes nodes that the loop adds
        for wait in waits_for.get(node.connection.connection_id, ()):
            waiter = wait.waiter.connection_id
            if waiter not in nodes:
                nodes[waiter] = Node(wait.waiter, root.tree, wait)
                node.waiters.append(nodes[waiter])
    return root


def _in_circle(connection_id: int, first_blocker: dict[int, int]) -> int:
    seen = set[int]()
    while connection_id not in seen:
        seen.add(connection_id)
        connection_id = first_blocker[connection_id]
    return connection_id


def _measure(top: Node) -> None:
    nodes = list(top.from_top())
    for node in reversed(nodes):
        node.behind = sum(1 + below.behind for below in node.waiters)
    for node in nodes:
        place = node.place + 1
        for below in node.waiters:
            below.place = place
            place += 1 + below.behind


def _note_other_waits(waits: Sequence[LockWait], nodes: dict[int, Node]) -> None:
    """Record the waits that are not branches of a tree."""
    for wait in waits:
        waiter, blocker = nodes[wait.waiter.connection_id], nodes[wait.blocker.connection_id]
        if waiter.wait is wait:
            continue
        if waiter.is_above(blocker):
            blocker.circles.append(wait)
            waiter.closes = wait if waiter.wait is None else None
        elif waiter.tree != blocker.tree:
            waiter.others.append(wait.blocker)
