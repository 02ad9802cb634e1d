"""The waits of a server as a tree: the holders that wait for nobody on top, their waiters below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group
from rich.text import Text
from rich.tree import Tree

from ..lock_info import LockConnection, LockWait, short_statement

_Path = frozenset[int]


def tree_of(waits: Sequence[LockWait]) -> Group:
    """Return a tree for each connection that keeps others waiting and waits for nobody itself.

    A connection that waits for several others is below each of them.  A circle of waits, which the
    server is about to end as a deadlock, has no such connection: it begins with any of its own.
    """
    return Group(*(_tree(root, waits) for root in _roots(waits)))


def _roots(waits: Sequence[LockWait]) -> Iterator[LockConnection]:
    """Yield the connections on top, that of the longest wait first."""
    reached: set[int] = set()
    waiting = {wait.waiter.connection_id for wait in waits}
    blockers = {wait.blocker.connection_id: wait.blocker for wait in waits}
    free = [one for number, one in blockers.items() if number not in waiting]
    for one in (*free, *blockers.values()):
        if one.connection_id not in reached:
            reached |= _behind(one.connection_id, waits)
            yield one


def _behind(holder: int, waits: Sequence[LockWait]) -> set[int]:
    """Return this connection and all that wait for it, or for another that waits for it."""
    reached, front = set[int](), {holder}
    while front:
        reached |= front
        waiters = {w.waiter.connection_id for w in waits if w.blocker.connection_id in front}
        front = waiters - reached
    return reached


def _tree(root: LockConnection, waits: Sequence[LockWait]) -> Tree:
    tree = Tree(_label(root, "bold red"), highlight=False)
    _add_waiters(tree, root.connection_id, waits, frozenset())
    return tree


def _add_waiters(tree: Tree, holder: int, waits: Sequence[LockWait], above: _Path) -> None:
    above |= {holder}
    for wait in waits:
        if wait.blocker.connection_id != holder:
            continue
        waiter = wait.waiter.connection_id
        if waiter in above:
            tree.add(Text(f"{wait.lock}: connection {waiter} again, a circle", style="bold red"))
        else:
            _add_waiters(tree.add(_waiter_label(wait)), waiter, waits, above)


def _waiter_label(wait: LockWait) -> Text:
    waited = "waits" if wait.seconds is None else f"{wait.seconds:.1f} s"
    return Text.assemble((f"{wait.lock}, {waited}: ", "bold"), _label(wait.waiter))


def _label(connection: LockConnection, style: str = "") -> Text:
    statement = short_statement(connection)
    text = Text(str(connection), style=style)
    if not connection.certain:
        text.append(" (perhaps)")
    return text if statement is None else text.append(f"\n{statement}", style="dim not bold")
