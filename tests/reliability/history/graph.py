"""The graph of who depends on whom.

An edge from one transaction to another says that the one comes first in every serial order:

ww  the other has replaced what the one wrote
wr  the other has read what the one wrote
rw  the other has replaced what the one has read
pr  the same, and it has inserted or deleted it: a phantom
rt  the one had ended before the other began
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import networkx as nx

from tests.reliability.history.record import ABSENT, History, Item, Outcome, Version

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
        if before != after and before in graph:  # else it was aborted, or is the beginning
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
    """Add the edges of time: from an end to a moment, to the next one, and to those who begin then.

    Of an unknown outcome the end is not known either: its server may have committed later.
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
    """At the same tick, the beginning counts as the earlier."""
    for one in history.committed:
        if one is not history.final:
            yield one.began, False, one.number
            if one.outcome is not Outcome.UNKNOWN:
                yield one.ended, True, one.number
