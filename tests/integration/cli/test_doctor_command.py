"""``sa-doclock doctor``: its report, its JSON, its exit statuses, and what it cannot do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from sa_doclock.errors import DOCS
from sa_doclock.tools.cli.app import app
from sa_doclock.tools.doctor import SEVERITIES
from tests.support.databases import Database

PARTS = "tests.integration.doctor.test_models:Base"


def invoke(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", *words], catch_exceptions=False)
    return result.exit_code, result.output


def test_the_report_has_cures_and_links_and_no_password(database: Database) -> None:
    status, output = invoke("--url", database.url)
    assert status in (0, 2)
    assert f"{database.name} " in output
    assert f"  {DOCS}/doctor.html#" in output
    assert output.splitlines()[-1].endswith(" to know")
    password = sa.make_url(database.url).password
    assert password is None or str(password) not in output


def test_json_is_a_list_of_objects(database: Database) -> None:
    status, output = invoke("--url", database.url, "--json", "--models", PARTS)
    reported = json.loads(output)
    assert reported
    for one in reported:
        assert one.keys() == {"severity", "code", "text", "cure", "link"}
        assert one["severity"] in SEVERITIES
        assert one["link"].endswith(f"#{one['code']}")
    assert "table-missing" in {one["code"] for one in reported}
    assert (status == 2) is ("error" in {one["severity"] for one in reported})


def test_the_exit_status(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    assert invoke("--url", url)[0] == 0  # the journal mode is a warning
    assert invoke("--url", url, "--strict")[0] == 1
    file = tmp_path / "shop.db"
    file.touch()
    assert invoke("--url", f"sqlite:///file:{file}?mode=ro&uri=true")[0] == 2


def test_the_busy_timeout_is_that_of_the_url(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}?timeout="
    assert "sqlite-busy-timeout" in invoke("--url", f"{url}0")[1]
    assert "sqlite-busy-timeout" not in invoke("--url", f"{url}5")[1]


@pytest.mark.parametrize(
    ("models", "reported"),
    [
        ("shop", "'shop' is not package.module:Name"),
        ("no_such_module:Base", "no_such_module cannot be imported"),
        ("sa_doclock:Base", "there is no Base in sa_doclock"),
        ("sa_doclock:document", "--models: base must be a declarative base or a registry"),
    ],
)
def test_models_that_are_none(tmp_path: Path, models: str, reported: str) -> None:
    status, output = invoke("--url", f"sqlite:///{tmp_path / 'shop.db'}", "--models", models)
    assert status == 2
    assert reported in output
