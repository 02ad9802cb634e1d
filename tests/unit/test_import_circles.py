"""No file of the package imports another in a circle, so that each can be read after those below it."""

from __future__ import annotations

import networkx as nx

from tests.unit.import_graph import Graph, import_graph


def circles(graph: Graph) -> list[list[str]]:
    drawn: nx.DiGraph[str] = nx.DiGraph()
    drawn.add_edges_from((name, other) for name, others in graph.items() for other in others)
    return sorted(sorted(some) for some in nx.strongly_connected_components(drawn) if len(some) > 1)


def test_no_file_imports_another_in_a_circle() -> None:
    assert circles(import_graph()) == []


def test_a_circle_is_found() -> None:
    graph = {name: frozenset(others) for name, others in {"a": "b", "b": "c", "c": "a"}.items()}
    assert circles({**graph, "d": frozenset("a")}) == [["a", "b", "c"]]


def test_the_graph_leads_to_the_file_that_has_the_name() -> None:
    found = import_graph()["core/session/lock_methods.py"]
    assert "core/locking/acquire.py" in found  # by the __init__ of its package
    assert "options.py" in found
