"""The picture of ``sa-doclock waits``: a sentence, and as much of the trees as the screen has lines for.

In the trees, each connection appears once.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text
from rich.tree import Tree

from ...keys import printable
from ...wait_info import KEY_MARK, LockConnection, LockWait, short_statement


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


_LONGEST_COMMENT = 500
_LINE = re.compile(r"[\w./\\-]+\.py:\d+")


def summary_of(forest: Sequence[Node]) -> str:
    """Return the sentence: the waiters, their lock, and the connection for which most of them wait.

    :param forest: not empty.
    """
    locks = Counter(_locks(forest))
    ((lock, _),) = locks.most_common(1)
    waiters = locks.total()
    more = len(locks) - 1
    named = f"{lock} and {_count(more, 'other lock')}" if more else lock
    who = "1 connection waits" if waiters == 1 else f"{waiters} connections wait"
    return f"{who} for {named}{_holders(forest, one_lock=not more)}"


def _locks(forest: Sequence[Node]) -> Iterator[str]:
    for top in forest:
        if top.closes is not None:
            yield top.closes.lock
        for node in top.from_top():
            if node.wait is not None:
                yield node.wait.lock


def _holders(forest: Sequence[Node], *, one_lock: bool) -> str:
    worst = forest[0]
    trees = [top for top in forest if top.waiters]
    alone = len(forest) - len(trees)  # their waiters stand below another root
    if worst.closes is not None:
        where = "in a circle, which is a deadlock"
        return f", {where}" if len(trees) == 1 else f"; {worst.waiting} of them {where}"
    if len(trees) > 1:
        where = f"; {worst.behind} of them behind {worst.tree}"
    else:
        where = f", {'held by' if one_lock else 'behind'} {worst.tree}"
        where += f" and {_count(alone, 'other')}" if alone else ""
    return ", ".join([where, *_known(worst.connection)])


def _known(connection: LockConnection) -> Iterator[str]:
    if connection.state is not None:
        yield printable(connection.state)
    if connection.transaction_seconds is not None:
        yield f"open for {connection.transaction_seconds:.1f} s"
    line = line_of(connection)
    if line is not None:
        yield f"line {line}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def line_of(connection: LockConnection) -> str | None:
    """Return the line of the program, such as ``shop/orders.py:31``, if the server knows it.

    It may be in the name of the application, or in a comment at the beginning or the end of the
    last statement, which need not be the one that took the lock.
    """
    texts = [connection.application or "", *_comments(connection.statement or "")]
    found = (_LINE.search(text) for text in texts)
    return next((line.group() for line in found if line is not None), None)


def _comments(statement: str) -> Iterator[str]:
    """Yield the comments before and after a statement, where programs name the sender.

    A comment inside may be part of a value.
    """
    text = statement.strip().rstrip("; \n")
    ends = (
        text[: text.find("*/")] if text.startswith("/*") else "",
        text[text.rfind("/*") : -2] if text.endswith("*/") else "",
    )
    for comment in ends:
        words = comment.removeprefix("/*").lstrip()
        if not words.startswith(KEY_MARK):
            yield words[:_LONGEST_COMMENT]


_DEEPEST = 8  # levels of indentation
_InWords = Callable[[Node, bool], RenderableType]
_EVERYTHING = "--all shows every connection in full"


def picture_of(waits: Sequence[LockWait], out: Console, *, everything: bool) -> RenderableType:
    """Return the waits as a sentence and a tree, not higher than the console.

    If the trees do not fit, each connection and each statement gets one line, the longest waiters
    come first, and the others are counted.  The time grows with the number of waits, drawn or
    counted.

    :param waits: the longest first.
    :param everything: of any height, each connection in full.
    """
    forest = forest_of(waits)
    summary = Text(summary_of(forest), style="bold")
    room = max(out.height - 1, 1)  # one line is for the prompt
    connections = sum(1 + top.behind for top in forest)
    if everything or connections <= room:
        trees = (_tree(top, _in_full(top), range(top.behind + 1), _in_full) for top in forest)
        whole = Group(summary, Text(), *trees)
        if everything or _height(whole, out) <= room:
            return whole
    hint = Text(_EVERYTHING, style="dim italic")
    lines = room - _height(Group(summary, Text(), hint), out)
    return Group(summary, Text(), *_cut_trees(forest, lines, out), hint)


def _height(shown: RenderableType, out: Console) -> int:
    return len(out.render_lines(shown, out.options.update(width=out.width), pad=False))


def _cut_trees(forest: Sequence[Node], lines: int, out: Console) -> Iterator[RenderableType]:
    """Yield as much of the trees as fits on these lines.

    The first tree gets half of them, and the lines that the other trees do not need; the second
    shares the rest in the same way.
    """
    needs = [sum(map(_lines_of, top.from_top())) for top in forest]
    needed = sum(needs)
    for number, top in enumerate(forest):
        needed -= needs[number]
        label: RenderableType = _in_full(top)
        if _height(label, out) > lines // 2:
            label = _in_lines(top)
        least = _height(label, out) + bool(top.waiters)
        if number and least + (top is not forest[-1]) > lines:
            rest = forest[number:]
            keeps = "keeps" if len(rest) == 1 else "keep"
            waiters = sum(top.behind for top in rest)
            text = f"and {len(rest)} more {keeps} {waiters} waiting"
            yield Text(text, style="bold yellow")
            return
        shown, used = _select(top, least, lines - min(needed, lines // 2))
        yield _tree(top, label, shown, _in_lines)
        lines -= used


def _select(top: Node, used: int, lines: int) -> tuple[set[int], int]:
    """Return the places of the connections that fit, and the lines that they use.

    :param used: the lines of the top, plus one for the count of those below.
    """
    shown = {top.place}
    for node in top.from_top():
        for below in node.waiters:
            more = _lines_of(below) + bool(below.waiters) - (below is node.waiters[-1])
            if used + more > lines:
                return shown, used
            shown.add(below.place)
            used += more
    return shown, used


def _lines_of(node: Node) -> int:
    return 1 + (node.connection.statement is not None) + len(node.circles)


def _tree(top: Node, label: RenderableType, shown: Collection[int], in_words: _InWords) -> Tree:
    tree = Tree(label, highlight=False)
    branches = {top.place: (tree, 0)}  # where to add a connection's waiters, and its depth
    for node in top.from_top():
        if node.place not in branches:
            break
        branch, depth = branches[node.place]
        for wait in node.circles:
            circle = f"{wait.lock}: connection {wait.waiter.connection_id} again, a circle"
            branch.add(Text(circle, style="bold red"))
        drawn = [below for below in node.waiters if below.place in shown]
        for below in drawn:
            is_deep = depth >= _DEEPEST
            added = branch.add(in_words(below, is_deep))
            branches[below.place] = (branch, depth) if is_deep else (added, depth + 1)
        hidden = node.waiters[len(drawn) :]
        if hidden:
            count = sum(1 + below.behind for below in hidden)
            text = f"and {count} more {'waits' if count == 1 else 'wait'} for it"
            branch.add(Text(text, style="bold yellow"))
    return tree


def _in_full(node: Node, is_deep: bool = False) -> Text:
    label, statement = _label(node, is_deep), _statement(node.connection)
    return label if statement is None else Text.assemble(label, "\n", statement)


def _in_lines(node: Node, is_deep: bool = False) -> RenderableType:
    label, statement = _label(node, is_deep), _statement(node.connection)
    return Group(*(_OneLine(text) for text in (label, statement) if text is not None))


def _label(node: Node, is_deep: bool) -> Text:
    certain = "" if node.connection.certain else " (perhaps)"
    wait = node.wait
    if wait is None:
        return Text(f"{node.connection}{certain}", style="bold red")
    waited = "waits" if wait.seconds is None else f"{wait.seconds:.1f} s"
    behind = f", behind connection {wait.blocker.connection_id}" if is_deep else ""
    lock, others = (f"{wait.lock}, {waited}{behind}: ", "bold"), ""
    if node.others:
        more = f" and {len(node.others) - 1} more" if len(node.others) > 1 else ""
        others = f", waits for connection {node.others[0].connection_id}{more} too"
    return Text.assemble(lock, f"{node.connection}{certain}{others}")


def _statement(connection: LockConnection) -> Text | None:
    statement = short_statement(connection)
    return None if statement is None else Text(statement, style="dim")


class _OneLine:
    def __init__(self, text: Text) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self._text.copy()
        if text.cell_len > options.max_width:
            text.truncate(max(options.max_width - 3, 0), overflow="crop")
            text.append("...")
        text.no_wrap, text.overflow = True, "crop"
        yield text
