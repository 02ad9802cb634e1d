"""The graph of who depends on whom, and the cycles in it.

An edge from one transaction to another says that the one comes first in every serial order:

ww  the other has replaced what the one wrote
wr  the other has read what the one wrote
rw  the other has replaced what the one has read
rt  the one had ended before the other began
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import networkx as nx

from tests.history.anomalies import Anomaly, Name
from tests.history.record import FIRST, History, Item, Transaction, Version

_ORDER = ("ww", "wr", "rt", "rw")
Graph: TypeAlias = "nx.DiGraph[int]"
"""Of the numbers of transactions; the attribute ``kinds`` of an edge is a set."""


class _Kind(NamedTuple):
    """A cycle is one edge, and a way back over such edges, where there is none of a simpler kind."""

    name: Name
    edge: str
    back: frozenset[str]
    simpler: tuple[frozenset[str], ...] = ()


_G1 = frozenset({"ww", "wr"})
_G2 = _G1 | {"rw"}
_KINDS = [
    _Kind(Name.G0, "ww", frozenset({"ww"})),
    _Kind(Name.G1C, "wr", _G1),
    _Kind(Name.G_SINGLE, "rw", _G1),
    _Kind(Name.G2_ITEM, "rw", _G2, (_G1,)),
    _Kind(Name.G1C_REALTIME, "rt", _G1 | {"rt"}),
    _Kind(Name.G_SINGLE_REALTIME, "rw", _G1 | {"rt"}, (_G1,)),
    _Kind(Name.G2_ITEM_REALTIME, "rw", _G2 | {"rt"}, (_G2, _G1 | {"rt"})),
]


def found_in_cycles(history: History) -> Iterator[Anomaly]:
    """One cycle for each kind that there is; one that is explained by a simpler kind is not told.

    Two that have replaced the same version are no edge: they are told as a lost update.
    """
    graph = graph_of(history)
    for component in nx.strongly_connected_components(graph):
        if len(component) > 1:
            yield from _cycles(graph.subgraph(component))


def graph_of(history: History) -> Graph:
    """Who depends on whom, of all that have committed."""
    graph: Graph = nx.DiGraph()
    graph.add_nodes_from(history.installed)
    replacers: dict[tuple[Item, Version], list[int]] = {}
    for number, installed in history.installed.items():
        for item, write in installed.items():
            if write.over is not None:
                replacers.setdefault((item, write.over), []).append(number)
                if write.over != FIRST:
                    _add(graph, write.over.writer, number, "ww")
    for number, seen in history.seen.items():
        for item, version in seen.items():
            _add(graph, version.writer, number, "wr")
            after = replacers.get((item, version), [])
            for replacer in after if number not in after else ():
                _add(graph, number, replacer, "rw")
    for before, after_it in _in_time(history.committed):
        _add(graph, before, after_it, "rt")
    return graph


def _add(graph: Graph, before: int, after: int, kind: str) -> None:
    if before != after and before in graph:  # else it was aborted, or is the beginning
        graph.add_edge(before, after)
        graph.edges[before, after].setdefault("kinds", set()).add(kind)


def _in_time(transactions: list[Transaction]) -> Iterator[tuple[int, int]]:
    """Who had ended before whom; what follows from two such pairs is left out."""
    for later in transactions:
        earlier = [one for one in transactions if one.ended < later.began]
        newest = max((one.began for one in earlier), default=0)
        for one in earlier:
            if one.ended >= newest:
                yield one.number, later.number


def _cycles(graph: Graph) -> Iterator[Anomaly]:
    for kind in _KINDS:
        for before, after in graph.edges:
            kinds: set[str] = graph.edges[before, after]["kinds"]
            if kind.edge not in kinds or any(
                _way(graph, after, before, simpler) for simpler in kind.simpler
            ):
                continue
            if way := _way(graph, after, before, kind.back):
                steps = [_step(graph, *pair, kind.back) for pair in pairwise(way)]
                text = f"T{before} -{kind.edge}-> T{after}" + "".join(steps)
                yield Anomaly(kind.name, text)
                break


def _way(graph: Graph, start: int, end: int, kinds: frozenset[str]) -> list[int]:
    """The shortest way over edges of these kinds; empty where there is none."""

    def passable(before: int, after: int) -> bool:
        return not kinds.isdisjoint(graph.edges[before, after]["kinds"])

    try:
        return nx.shortest_path(nx.subgraph_view(graph, filter_edge=passable), start, end)
    except nx.NetworkXNoPath:
        return []


def _step(graph: Graph, before: int, after: int, kinds: frozenset[str]) -> str:
    kind = next(one for one in _ORDER if one in kinds & graph.edges[before, after]["kinds"])
    return f" -{kind}-> T{after}"
