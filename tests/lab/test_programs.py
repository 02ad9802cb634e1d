"""The verdicts on the audit's errors in public programs."""

from __future__ import annotations

from collections import Counter

from lab.programs.replay import file_of
from lab.programs.suites import SUITES
from lab.programs.table import read_results, read_verdicts, without_verdict

_LEAST_TRUE = 0.95


def test_every_error_has_a_verdict() -> None:
    results = read_results()
    assert results.keys() == SUITES.keys()
    assert [one for result in results.values() for one in without_verdict(result)] == []


def test_what_is_called_certain_is_true() -> None:
    verdicts = {(one.program, one.code, one.places): one.verdict for one in read_verdicts()}
    judged = Counter(
        verdicts[name, code, places]
        for name, result in read_results().items()
        for code, places in result.errors
    )
    assert judged[True] >= _LEAST_TRUE * judged.total()


def test_each_replay_has_shown_its_error() -> None:
    for name, result in read_results().items():
        assert bool(result.replayed) == file_of(name).exists()
        assert all(0 < wrong <= orders for wrong, orders in result.replayed)
