"""audit(): a block in which every Session and Engine of the process is watched; explore_finding() replays a finding."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from sqlalchemy import Engine, event
from sqlalchemy.orm import Mapper, QueryableAttribute, Session

from sa_doclock import LockingSession

from .exploration import Exploration, explore
from .findings import CODES, AuditFinding, each_once, json_of, sarif_of, table_of
from .html import html_of
from .listeners import Listeners
from .paths import Paths
from .places import RanBy, packages_in
from .rules import HOLD_LIMIT
from .watched import Rules, Watched

_EVENTS: Final[Mapping[Any, Sequence[str]]] = {
    Engine: ("before_cursor_execute",),
    Session: (
        *("after_begin", "after_commit", "after_transaction_end"),
        *("before_flush", "transient_to_pending"),
    ),
    LockingSession: ("lock_acquired",),
    Mapper: ("refresh",),
}
_SAVEPOINTS: Final = {
    "savepoint": "SAVEPOINT",
    "release_savepoint": "RELEASE",
    "rollback_savepoint": "ROLLBACK",
}
_SAMPLE: Final = 0.02  # seconds
#: Options that make SQLAlchemy call a listener directly, without a wrapper.
_AS_IT_IS: Final = {"raw": True, "retval": True, "include_key": True}


class Audit:
    """The findings of a run, which grow while the audit watches it.

    An audit keeps no object, session or connection alive, and forgets the rows of a transaction when
    it ends.  It keeps at most 10,000 rows of one transaction, 20,000 pairs of rows in locking order, and
    2,000 different findings of each code.  ``left_out`` counts the rest.

    :param hold_limit: seconds that a transaction may stay open, with locks or without, while no
        statement runs.
    :param packages: the names of installed packages that belong to the program.  The audit finds
        packages whose source is in the project by itself.
    :param root: the folder of the project, to which paths are relative; by default the current one.
    :param tests_alone: the run consists of tests: no concurrent caller runs their lines.
    """

    def __init__(
        self,
        *,
        hold_limit: float = HOLD_LIMIT,
        packages: Collection[str] = (),
        root: Path | None = None,
        tests_alone: bool = False,
    ) -> None:
        self._paths = Paths(Path.cwd() if root is None else root)
        self._packages = packages_in(self._paths.root) | {*packages}
        self._ran_by = RanBy()
        self._rules = Rules(hold_limit)
        self._hold_limit = hold_limit
        if tests_alone:
            known = lru_cache(maxsize=4096)(self._paths.is_file_of_tests)
            for rule in self._rules:
                rule.is_of_tests = known
        self._watched = Watched(self._rules)

    @property
    def findings(self) -> list[AuditFinding]:
        """The findings that have a place, each once: errors first, then by code, the most frequent first.

        Within a severity, findings only in lines of tests come last.
        """
        codes = list(CODES)
        found = [one for rule in self._rules for one in rule.findings() if one.sites]

        def rank(one: AuditFinding) -> tuple[Any, ...]:
            of_tests = all(map(self._paths.is_of_tests, one.sites))
            return (one.severity, of_tests, codes.index(one.code), -one.count)

        return [self._with_callers(one) for one in sorted(each_once(found), key=rank)]

    def _with_callers(self, finding: AuditFinding) -> AuditFinding:
        tests = self._ran_by.tests_of(finding.sites)
        callers = self._ran_by.callers_of(finding.sites[-1], tests)
        files = {site.rpartition(":")[0] for site in finding.sites}
        others = tuple(one for one in callers if one.rpartition(":")[0] not in files)
        return replace(finding, callers=others, tests=tuple(tests))

    @property
    def statements(self) -> int:
        """The number of watched statements."""
        return self._watched.statements

    @property
    def transactions(self) -> int:
        """The number of watched transactions."""
        return self._watched.transactions

    @property
    def left_out(self) -> int:
        """The number of observations beyond the limits; 0 except in very long runs."""
        return self._watched.rows_left_out + sum(rule.left_out for rule in self._rules)

    @property
    def failures(self) -> tuple[int, str]:
        """The number of errors in the audit itself, hidden from the program, and the first traceback."""
        return self._watched.failures, self._watched.first_failure

    def report(self) -> str:
        """Return the findings as a table for people to read."""
        found = self.findings
        table = [*table_of(found, self._paths), ""] if found else []
        return "\n".join([*table, *self._summary(found)])

    def _summary(self, found: Sequence[AuditFinding]) -> list[str]:
        left_out, (times, first) = self.left_out, self.failures
        errors = sum(one.severity == "error" for one in found)
        counts = {
            "error": errors,
            "warning": len(found) - errors,
            "statement": self.statements,
            "transaction": self.transactions,
        }
        lines = ["{}, {} in {} of {}".format(*(_counted(n, noun) for noun, n in counts.items()))]
        if not self.statements:
            lines.append(
                "no statement was seen: the program sent none through SQLAlchemy, or another process sent them"
            )
        if left_out:
            lines.append(
                f"{_counted(left_out, 'observation')} exceeded the limits, so findings might be missing"
            )
        if times:
            lines.append(
                f"the audit failed {_counted(times, 'time')}, so findings might be missing; the first error:"
            )
            lines.append(first)
        return lines

    def to_json(self) -> str:
        """Return the findings as a list of JSON objects with the attributes of AuditFinding.

        Paths in the project are relative to it, and paths of installed files to their folder.  ``in_tests``
        is true if all lines belong to tests.  ``story`` contains the steps of two transactions.
        """
        return json_of(self.findings, self._paths)

    def to_html(self) -> str:
        """Return the findings as one HTML page, which loads nothing and runs no script."""
        found = self.findings
        return html_of(found, self._summary(found), self._paths)

    def to_sarif(self) -> str:
        """Return the findings as SARIF 2.1.0, which code forges show at the line.

        Paths in the project are relative to it.
        """
        return sarif_of(self.findings, self._paths)

    def export(self) -> dict[str, Any]:
        """Return all results as lists, texts and numbers, for ``merge()`` in another process."""
        watched = self._watched
        return {
            "rules": {rule.code: rule.export() for rule in self._rules},
            "counts": [watched.statements, watched.transactions, watched.rows_left_out],
            "failures": [watched.failures, watched.first_failure],
            "ran_by": self._ran_by.export(),
        }

    def merge(self, exported: dict[str, Any]) -> None:
        """Add the findings of an audit in another process.

        A lock cycle that only both audits together show is possible, not certain: the rows of two processes
        may be in two databases.
        """
        for rule in self._rules:
            rule.merge(exported["rules"][rule.code])
        watched = self._watched
        statements, transactions, rows = exported["counts"]
        watched.statements += statements
        watched.transactions += transactions
        watched.rows_left_out += rows
        failures, first = exported["failures"]
        watched.failures += failures
        watched.first_failure = watched.first_failure or first
        self._ran_by.merge(exported["ran_by"])

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch in the block."""
        listeners = list(self._listeners())
        ended = Event()
        sampler = Thread(target=self._sample, args=(ended,), name="sa_doclock audit", daemon=True)
        with self._ran_by.listening(self._packages):
            for target, name, listener, options in listeners:
                event.listen(target, name, listener, **options)
            sampler.start()
            try:
                yield
            finally:
                ended.set()
                sampler.join()
                for target, name, listener, _ in listeners:
                    event.remove(target, name, listener)

    def _sample(self, ended: Event) -> None:
        note = self._watched.guarded(lambda: self._watched.note_waiting(self._hold_limit))
        while not ended.wait(max(self._hold_limit / 2, _SAMPLE)):
            note()

    def _listeners(self) -> Iterator[tuple[Any, str, Any, dict[str, bool]]]:
        listeners, guarded = Listeners(self._watched), self._watched.guarded
        for target, names in _EVENTS.items():
            options = {"raw": True} if target is Mapper else {}
            for name in names:
                yield target, name, guarded(getattr(listeners, name)), options
        for name in ("commit", "rollback"):
            end = guarded(partial(self._watched.end, name == "commit"))
            yield from ((Engine, of, end, {}) for of in (name, f"{name}_twophase"))
        for name, word in _SAVEPOINTS.items():
            yield Engine, name, guarded(partial(listeners.savepoint, word)), {}
        for kind in ("insert", "update", "delete"):
            written = guarded(partial(listeners.written, kind))
            yield Mapper, f"after_{kind}", written, {"raw": True}
        yield Engine, "after_cursor_execute", guarded(self._watched.begin_idle), {}
        # Not guarded as a whole: do_orm_execute() runs the program's statement, the others run for each object.
        yield Session, "do_orm_execute", listeners.do_orm_execute, {}
        yield Mapper, "load", listeners.load, {"raw": True}
        yield QueryableAttribute, "set", listeners.set, _AS_IT_IS


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


@contextmanager
def audit(
    *,
    hold_limit: float = HOLD_LIMIT,
    packages: Collection[str] = (),
    root: Path | None = None,
) -> Iterator[Audit]:
    """Watch every Session and Engine of this process in the block, and report missing locks.

    It watches sessions of every class, synchronous or not.  It changes no model and sends no statement.
    The context manager yields an :class:`Audit`; you can read its findings in the block and afterwards.
    It judges a transaction when the transaction ends.  It does not audit code that runs outside the block.

    Example::

        with audit() as found:
            with Session() as session, session.locked(Order, 42) as order:
                order.total += 1
        print(found.report())

    :param hold_limit: seconds that a transaction may stay open, with locks or without, while no
        statement runs.
    :param packages: the names of installed packages that belong to the program, if you test an
        installed program.
    :param root: the folder of the project, to which paths are relative; by default the current one.
    """
    found = Audit(hold_limit=hold_limit, packages=packages, root=root)
    with found.watching():
        yield found


def explore_finding(
    finding: AuditFinding,
    first: Callable[[], Any],
    second: Callable[[], Any] | None = None,
    *,
    before: Callable[[], Any],
    invariant: Callable[..., Any],
    orders: int = 1000,
) -> Exploration:
    """Run the functions of a finding in all orders of their statements, as :func:`explore` does.

    An audit knows the lines of a finding, but not the arguments for them, so the caller passes the
    functions.  The exploration is audited: it is an error if the finding does not occur again at the
    same lines.

    Example::

        finding = found.findings[0]  # of an audit() of add_one()
        explore_finding(finding, add_one, before=before, invariant=both_are_counted)

    :param finding: a finding from an :func:`audit` of this program, unchanged since.  After the cure,
        the finding no longer occurs: pass the functions to :func:`explore`.
    :param first: a function or coroutine function without arguments that executes the finding's
        lines.
    :param second: the other function; by default the first again.
    :raises ValueError: the finding did not occur.
    :raises TimeoutError: as in :func:`explore`, which also describes the other parameters.
    """
    with audit() as again:
        explored = explore(
            first, second or first, before=before, invariant=invariant, orders=orders
        )
    if not any(
        (one.code, one.message) == (finding.code, finding.message) for one in again.findings
    ):
        raise ValueError(
            f"the functions do not execute the lines of this {finding.code}: "
            f"{', '.join(finding.sites)}"
        )
    return explored
