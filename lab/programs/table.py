"""The audit's figures for public programs, as the page on audits shows them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).with_name("results.json")
VERDICTS = Path(__file__).with_name("verdicts.json")


@dataclass(frozen=True)
class Verdict:
    """A person's judgement on one error, after reading the program's code.

    :ivar places: the finding's places in the program.
    :ivar verdict: true or false.
    """

    program: str
    code: str
    places: tuple[str, ...]
    verdict: bool
    why: str


@dataclass(frozen=True)
class Result:
    """One run of a suite.

    :ivar errors: the code and places of each error.
    :ivar cost: the CPU time with the audit, divided by the time without it.
    :ivar replayed: for each replayed error, the number of wrong orders and of all orders.
    """

    program: str
    version: str
    tests: str
    errors: tuple[tuple[str, tuple[str, ...]], ...]
    warnings: int
    cost: float
    replayed: tuple[tuple[int, int], ...] = ()


def read_verdicts() -> list[Verdict]:
    """Return the verdicts from the file."""
    read = json.loads(VERDICTS.read_text(encoding="utf-8"))
    return [Verdict(**{**one, "places": tuple(one["places"])}) for one in read]


def read_results() -> dict[str, Result]:
    """Return the last run of each program."""
    read = json.loads(RESULTS.read_text(encoding="utf-8"))
    found = {}
    for one in read:
        errors = tuple(dict.fromkeys((code, tuple(places)) for code, places in one["errors"]))
        replayed = tuple((wrong, orders) for wrong, orders in one["replayed"])
        found[one["program"]] = Result(**{**one, "errors": errors, "replayed": replayed})
    return found


def save_results(results: dict[str, Result]) -> None:
    """Write the file."""
    rows = [asdict(results[name]) for name in sorted(results)]
    RESULTS.write_text(f"{json.dumps(rows, indent=1)}\n", encoding="utf-8")


def without_verdict(result: Result) -> list[tuple[str, tuple[str, ...]]]:
    """Return the errors without a verdict."""
    known = {(one.code, one.places) for one in read_verdicts() if one.program == result.program}
    return [error for error in result.errors if error not in known]


def rows() -> Iterator[str]:
    """Yield the lines of the table."""
    verdicts = {(one.program, one.code, one.places): one.verdict for one in read_verdicts()}
    yield "| program | version | errors | true | false | orders that are wrong | warnings | cost |"
    yield "|---|---|---|---|---|---|---|---|"
    judged_true = judged_false = 0
    for name, result in sorted(read_results().items()):
        judged = [verdicts[name, code, places] for code, places in result.errors]
        right, wrong = sum(judged), len(judged) - sum(judged)
        judged_true, judged_false = judged_true + right, judged_false + wrong
        yield (
            f"| {name} | {result.version} | {len(judged)} | {right} | {wrong} | {_replay(result)} | "
            f"{result.warnings} | {result.cost:.2f} |"
        )
    yield f"| all | | {judged_true + judged_false} | {judged_true} | {judged_false} | | | |"


def _replay(result: Result) -> str:
    return ", ".join(f"{wrong} of {orders}" for wrong, orders in result.replayed)
