"""``sa-doclock explain``: for people, as JSON, and what cannot be explained."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from sa_doclock import LockOptions, explain_lock
from sa_doclock.cli.app import app
from tests.support.databases import Database
from tests.support.models import Order

ORDER = "tests.support.models:Order"


def invoke(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["explain", *words], catch_exceptions=False)
    return result.exit_code, result.output


def test_the_text_is_that_of_the_function(documents: Database) -> None:
    told = explain_lock(documents.engine(), Order, LockOptions.ForUpdate | LockOptions.NoWait)
    words = ("--url", documents.url, ORDER, "ForUpdate | NoWait")
    assert invoke(*words) == (0, f"{told}\n")


def test_json(documents: Database) -> None:
    status, output = invoke(
        "--url", documents.url, "--json", "--lock-timeout", "0.3", ORDER, "SharedRead"
    )
    told = json.loads(output)
    assert status == 0
    assert (told["entity"], told["lock"], told["database"]) == (ORDER, "SharedRead", documents.name)
    assert told.keys() >= {"level", "statements", "rows", "waits_for", "notes"}
    assert any("lk_order" in one for one in told["statements"])


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("tests.support.models:Order", "Update"), "there is no lock 'Update': None_, NoLock"),
        (("tests.support.models:Order", "ForUpdate|SharedRead"), "collide"),
        (("tests.support.models:Order", "ForUpdate|SkipLocked"), "there is nothing to skip"),
        (("tests.support.models:ROWS", "ForUpdate"), "there is no ROWS in tests.support.models"),
        (("json:JSONDecoder", "ForUpdate"), "a mapped class is needed"),
        (("tests.support.models:Order", "SnapshotRead", "--lock-timeout", "1"), "never waits"),
    ],
)
def test_what_cannot_be_explained(documents: Database, words: tuple[str, ...], told: str) -> None:
    status, output = invoke("--url", documents.url, *words)
    assert status == 2, output
    assert told in output
    assert output.startswith("sa-doclock: ")
