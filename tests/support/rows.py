"""A table of cases as one test, for long tables that need no server."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., None])
Describe = Callable[[Any], object]
_Param = type(pytest.param())


def rows(
    names: str | Sequence[str],
    values: Iterable[Any],
    ids: Iterable[object] | Describe = repr,
) -> Callable[[Test], Test]:
    """Run a test with each of these values, within one item.

    All rows run; the failure names the rows that failed.  The arguments are those of
    ``pytest.mark.parametrize``.  All rows share the fixtures.
    """
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    given = [_values(value, len(wanted)) for value in values]
    described = ids if callable(ids) else dict(enumerate(ids)).__getitem__

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            calls = [{**fixtures, **dict(zip(wanted, row, strict=True))} for row in given]
            failures = [_failure(test, arguments) for arguments in calls]
            failed = {number: exc for number, exc in enumerate(failures) if exc}
            if failed:
                text = f"{len(failed)} of {len(given)} rows have failed:"
                for number, exc in failed.items():
                    reported = given[number] if callable(ids) else (number,)
                    name = ", ".join(_text(described, value) for value in reported)
                    text += f"\n{name}: {type(exc).__name__}: {exc}"
                raise AssertionError(text) from next(iter(failed.values()))

        signature = inspect.signature(test)
        kept = [one for one in signature.parameters.values() if one.name not in wanted]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run  # type: ignore[return-value]

    return decorate


def _values(value: Any, many: int) -> tuple[Any, ...]:
    if isinstance(value, _Param):
        assert not value.marks, "a mark is for a whole item"
        return tuple(value.values)
    return (value,) if many == 1 else tuple(value)


def _failure(test: Callable[..., None], arguments: dict[str, Any]) -> BaseException | None:
    try:
        test(**arguments)
    except (Exception, pytest.fail.Exception) as exc:  # noqa: BLE001
        return exc
    return None


def _text(describe: Describe, value: Any) -> str:
    try:
        return str(describe(value))[:80]
    except Exception as exc:  # noqa: BLE001  # some rows have values that cannot be shown
        return f"a {type(value).__name__} ({exc})"
