"""Everything that is wrong with a history: anomalies of single items, and cycles of dependencies."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import networkx as nx

from tests.reliability.history.items import Anomaly, Name, found_in_reads, found_in_writes
from tests.reliability.history.record import ABSENT, History, Item, Outcome, Version

# --------------------------------------------------------------------------------------------------
# The dependency graph of transactions.
#
# An edge from one transaction to another says that the first precedes it in every serial order:
#
# ww  the second replaced a version that the first wrote
# wr  the second read a version that the first wrote
# rw  the second replaced a version that the first read
# pr  the same, and it inserted or deleted the item: a phantom
# rt  the first ended before the second began

Graph: TypeAlias = "nx.DiGraph[int]"
"""Of the numbers of transactions, and of moments, which are below ``MOMENTS``.

The attribute ``kinds`` of an edge is a set; of a node, ``at`` is a tick, ``who`` a transaction.
"""

MOMENTS = -1000
"""Between two transactions, time passes through these: fewer edges than one for every pair."""


def graph_of(history: History) -> Graph:
    """Return the dependencies between all transactions that count."""
    graph: Graph = nx.DiGraph()
    for one in history.committed:
        graph.add_node(one.number, at=one.began, who=str(one))
    kinds: dict[tuple[int, int], set[str]] = {}
    for before, after, kind in _dependencies(history):
        if before != after and before in graph:  # otherwise it was aborted, or is the beginning
            kinds.setdefault((before, after), set()).add(kind)
    graph.add_edges_from((*edge, {"kinds": found}) for edge, found in kinds.items())
    _add_time(graph, history)
    return graph


def _dependencies(history: History) -> Iterator[tuple[int, int, str]]:
    replacers: dict[tuple[Item, Version], list[int]] = {}
    for number, installed in history.installed.items():
        for item, write in installed.items():
            if write.over is not None and write.over != ABSENT:
                replacers.setdefault((item, write.over), []).append(number)
                yield write.over.writer, number, "ww"
    for number, seen in history.seen.items():
        for item, version in seen.items():
            yield version.writer, number, "wr"
            after = replacers.get((item, version), [])
            for replacer in after if number not in after else ():
                write = history.installed[replacer][item]
                phantom = history.is_gone(item, version) != write.gone
                yield number, replacer, "pr" if phantom else "rw"


def _add_time(graph: Graph, history: History) -> None:
    """Add the edges of time: from an end to a moment, to the next moment, and to transactions that begin then.

    An unknown outcome has an unknown end: its server may have committed later.
    """
    moment = None
    for tick, ends, number in sorted(_events(history)):
        if not ends:
            if moment is not None:
                _pass_time(graph, moment, number)
            continue
        last, moment = moment, (MOMENTS if moment is None else moment - 1)
        graph.add_node(moment, at=tick)
        _pass_time(graph, number, moment)
        if last is not None:
            _pass_time(graph, last, moment)


def _pass_time(graph: Graph, before: int, after: int) -> None:
    graph.add_edge(before, after, kinds={"rt"})


def _events(history: History) -> Iterator[tuple[int, bool, int]]:
    """Yield beginnings and ends; at the same tick, a beginning sorts first."""
    for one in history.committed:
        if one is not history.final:
            yield one.began, False, one.number
            if one.outcome is not Outcome.UNKNOWN:
                yield one.ended, True, one.number


# --------------------------------------------------------------------------------------------------
# The cycles in the dependency graph, by name.

Kinds = frozenset[str]
_ORDER = ("ww", "wr", "rt", "rw", "pr")
_SHOWN = 8  # steps of a cycle


class _Kind(NamedTuple):
    """A cycle: one edge, and a path back over such edges, if a simpler kind does not explain it."""

    name: Name
    edge: Kinds
    back: Kinds
    simpler: tuple[Kinds, ...] = ()


_G0 = frozenset({"ww"})
_G1 = frozenset({"ww", "wr"})
_G2_ITEM = _G1 | {"rw"}
_G2 = _G2_ITEM | {"pr"}
_RW, _PR, _RT = frozenset({"rw"}), frozenset({"pr"}), frozenset({"rt"})
_KINDS = [
    _Kind(Name.G0, _G0, _G0),
    _Kind(Name.G1C, frozenset({"wr"}), _G1),
    _Kind(Name.G_SINGLE, _RW | _PR, _G1),
    _Kind(Name.G2_ITEM, _RW, _G2_ITEM, (_G1,)),
    _Kind(Name.G2, _PR, _G2, (_G1,)),
    _Kind(Name.G1C_REALTIME, _RT, _G1 | _RT),
    _Kind(Name.G_SINGLE_REALTIME, _RW | _PR, _G1 | _RT, (_G1,)),
    _Kind(Name.G2_REALTIME, _RW | _PR, _G2 | _RT, (_G2, _G1 | _RT)),
]


def found_in_cycles(history: History) -> Iterator[Anomaly]:
    """Yield one cycle of each kind, unless a simpler kind explains it.

    Two transactions that replaced the same version have no edge: the checker reports a lost update instead.
    """
    graph = graph_of(history)
    for component in nx.strongly_connected_components(graph):
        if len(component) > 1:
            part = _Part(graph.subgraph(component))
            yield from filter(None, map(part.find, _KINDS))


class _Part:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ways: dict[Kinds, _Ways] = {}

    def find(self, kind: _Kind) -> Anomaly | None:
        kinds: set[str]
        for before, after, kinds in self._graph.edges(data="kinds"):
            if before <= MOMENTS or kind.edge.isdisjoint(kinds):
                continue
            way = self._over(kind.back).find(after, before)
            if way and not any(self._over(one).find(after, before) for one in kind.simpler):
                return Anomaly(kind.name, self._edges_text(before, way, kind))
        return None

    def _over(self, kinds: Kinds) -> _Ways:
        if kinds not in self._ways:
            self._ways[kinds] = _Ways(self._graph, kinds)
        return self._ways[kinds]

    def _edges_text(self, start: int, way: list[int], kind: _Kind) -> str:
        """Describe the edges between transactions; elapsed time is an edge, too."""
        steps, wanted = [self._who(start)], kind.edge
        for before, after in pairwise([start, *way]):
            kinds: set[str] = self._graph.edges[before, after]["kinds"]
            if after > MOMENTS:
                edge = next(one for one in _ORDER if one in wanted & kinds)
                steps.append(f"-{edge}-> {self._who(after)}")
            wanted = kind.back
        if len(steps) > _SHOWN:
            steps[_SHOWN // 2 : -_SHOWN // 2] = [f"... {len(steps) - _SHOWN} more ..."]
        return " ".join(steps)

    def _who(self, number: int) -> str:
        return str(self._graph.nodes[number]["who"])


class _Ways:
    """The paths over edges of some kinds."""

    def __init__(self, graph: Graph, kinds: Kinds) -> None:
        self._graph: Graph = nx.DiGraph()
        self._graph.add_nodes_from(graph)
        found: set[str]
        for before, after, found in graph.edges(data="kinds"):
            if not kinds.isdisjoint(found):
                self._graph.add_edge(before, after)
        self._place = self._places(graph)

    def find(self, start: int, end: int) -> list[int]:
        """Return the shortest path; empty if there is none."""
        first, last = self._place[start], self._place[end]
        if first > last:
            return []
        between = nx.subgraph_view(
            self._graph, filter_node=lambda node: first <= self._place[node] <= last
        )
        try:
            return nx.shortest_path(between, start, end)
        except nx.NetworkXNoPath:
            return []

    def _places(self, graph: Graph) -> dict[int, int]:
        """Return an order without paths backwards; nodes that reach each other share a place."""
        condensed = nx.condensation(self._graph)
        members: dict[int, set[int]] = {one: condensed.nodes[one]["members"] for one in condensed}
        at = {one: min(graph.nodes[each]["at"] for each in members[one]) for one in members}
        order = nx.lexicographical_topological_sort(condensed, key=at.__getitem__)
        return {each: place for place, one in enumerate(order) for each in members[one]}


# --------------------------------------------------------------------------------------------------
# Every anomaly of a history.


def check(history: History) -> list[Anomaly]:
    """Return the anomalies; of cycles, the first of each kind in each tangle of transactions."""
    return [*found_in_reads(history), *found_in_writes(history), *found_in_cycles(history)]
