"""rows() runs each row, and the failure names those that have failed."""

from __future__ import annotations

import inspect
import re

import pytest

from tests.support.rows import rows


def test_all_rows_run_and_those_that_failed_are_named() -> None:
    seen = []

    @rows("number, other", [(1, 1), pytest.param(2, 3, id="two"), (10**5000, 0), (4, 4)])
    def check(number: int, other: int) -> None:
        seen.append(number)
        assert number == other, "not the same"

    reported = (
        r"2 of 4 rows have failed:\n2, 3: AssertionError: not the same.*\na int \(.*, 0: Assert"
    )
    with pytest.raises(AssertionError, match=re.compile(reported, re.DOTALL)) as caught:
        check()  # type: ignore[call-arg]
    assert seen == [1, 2, 10**5000, 4]
    assert "not the same" in str(caught.value.__cause__)


def test_a_missing_exception_is_a_failure_of_its_row() -> None:
    @rows("value", ["1", "x"], ids=["a number", "no number"])
    def check(value: str) -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            int(value)

    with pytest.raises(
        AssertionError, match=r"1 of 2 rows have failed:\na number: Failed: DID NOT"
    ):
        check()  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", [int, float])
@rows("text", ["1", "2"])
@rows("add", [1, 2])
def test_the_rest_of_the_arguments_is_as_ever(
    kind: type[int], text: str, add: int, request: pytest.FixtureRequest
) -> None:
    assert kind(text) + add > 1
    assert [*inspect.signature(request.function).parameters] == ["kind", "request"]
