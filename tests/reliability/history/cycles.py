"""The cycles in the graph of who depends on whom, by their names."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import networkx as nx

from tests.reliability.history.anomalies import Anomaly, Name
from tests.reliability.history.graph import MOMENTS, Graph, graph_of
from tests.reliability.history.record import History

Kinds = frozenset[str]
_ORDER = ("ww", "wr", "rt", "rw", "pr")
_SHOWN = 8  # steps of a cycle


class _Kind(NamedTuple):
    """A cycle is one edge, and a way back over such edges, where there is none of a simpler kind."""

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
    """One cycle for each kind that there is; one that is explained by a simpler kind is not reported.

    Two that have replaced the same version are no edge: they are reported as a lost update.
    """
    graph = graph_of(history)
    for component in nx.strongly_connected_components(graph):
        if len(component) > 1:
            part = _Part(graph.subgraph(component))
            yield from filter(None, map(part.find, _KINDS))


class _Part:
    """A strongly connected part of the graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ways: dict[Kinds, _Ways] = {}

    def find(self, kind: _Kind) -> Anomaly | None:
        """Return the first cycle of this kind."""
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
        """The edges from transaction to transaction; time that passes is one of them."""
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
    """The ways over edges of some kinds."""

    def __init__(self, graph: Graph, kinds: Kinds) -> None:
        self._graph: Graph = nx.DiGraph()
        self._graph.add_nodes_from(graph)
        found: set[str]
        for before, after, found in graph.edges(data="kinds"):
            if not kinds.isdisjoint(found):
                self._graph.add_edge(before, after)
        self._place = self._places(graph)

    def find(self, start: int, end: int) -> list[int]:
        """The shortest way; empty where there is none."""
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
        """An order in which no way leads back; what can reach each other has the same place."""
        condensed = nx.condensation(self._graph)
        members: dict[int, set[int]] = {one: condensed.nodes[one]["members"] for one in condensed}
        at = {one: min(graph.nodes[each]["at"] for each in members[one]) for one in members}
        order = nx.lexicographical_topological_sort(condensed, key=at.__getitem__)
        return {each: place for place, one in enumerate(order) for each in members[one]}
