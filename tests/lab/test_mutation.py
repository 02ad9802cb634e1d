"""A mutant is behind its switch, and the original is what it was."""

from __future__ import annotations

from typing import Any

from lab.mutation.points import SWITCHES, Switches, mutated, places

SOURCE = '''
LIMIT = 3  # a module's own: no place

def check(a: int, b: int = 2, *, log=list) -> int | None:
    """Return something."""
    log.append(a)
    if a < b and not log == []:
        return a + 1
    return b if a else f"{a == b}"
'''


def results(active: int) -> tuple[Any, ...]:
    tree, _ = mutated(SOURCE, {place: place for place in range(places(SOURCE))})
    switches = Switches()
    switches.active = active
    module: dict[str, Any] = {SWITCHES: switches}
    exec(compile(tree, "one.py", "exec"), module)
    calls = []
    for a, b in ((1, 5), (2, 2), (3, 2), (0, 0)):
        log: list[int] = []
        calls += [module["check"](a, b, log=log), log]
    return (*calls, switches)


def test_without_a_switch_all_is_as_it_was() -> None:
    module: dict[str, Any] = {}
    exec(SOURCE, module)
    *found, switches = results(-1)
    expected = []
    for a, b in ((1, 5), (2, 2), (3, 2), (0, 0)):
        log: list[int] = []
        expected += [module["check"](a, b, log=log), log]
    assert found == expected
    assert switches == {*range(places(SOURCE))}


def test_each_switch_changes_something() -> None:
    original = results(-1)[:-1]
    reported = mutated(SOURCE, {place: place for place in range(places(SOURCE))})[1]
    same = [
        reported[number] for number in range(places(SOURCE)) if results(number)[:-1] == original
    ]
    assert same == []
    assert len(reported) == places(SOURCE) == 11
