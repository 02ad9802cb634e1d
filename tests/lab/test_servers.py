"""Whoever starts the servers of docker-compose.yml by hand, and CI, gives the tests these URLs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.servers import NAMES, UnavailableError, docker, url_variable
from lab.servers.docker import IMAGES, URLS
from lab.servers.mariadb import scripts_of

ROOT = Path(__file__).resolve().parents[2]


def _lines_of(path: str) -> list[str]:
    return [line.strip() for line in (ROOT / path).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", NAMES)
def test_the_compose_file_tells_how_to_reach_what_it_starts(name: str) -> None:
    lines = _lines_of("docker-compose.yml")
    assert f"#   export {url_variable(name)}='{URLS[name]}'" in lines
    assert {f"{name}:", f"{name}: &{name}"} & set(lines)
    assert f"image: {IMAGES[name][0]}" in lines


class Docker:
    """An engine without images, in place of the program.

    :ivar ran: the commands that would have changed something.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[str] = []
        self.said: list[str] = []
        monkeypatch.setattr(docker, "_why_not", lambda: None)
        monkeypatch.setattr(docker, "_succeeds", lambda _: False)
        monkeypatch.setattr(docker, "run", self.run)
        monkeypatch.setattr(docker, "say", self.said.append)

    def run(self, command: list[str], **_: object) -> str:
        words = " ".join(command).partition("docker-compose.yml ")[2]
        self.ran += [words] if words.startswith(("pull", "up")) else []
        if words.startswith("up"):
            msg = "not here"
            raise UnavailableError(msg)
        return ""


def test_an_image_is_announced_before_it_is_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Docker(monkeypatch)
    with pytest.raises(UnavailableError, match="not here"):
        docker.start("mysql")
    assert engine.said == ["Downloading the image mysql:9, by Docker: some hundred MB, GPL-2.0"]
    assert engine.ran == ["pull --quiet mysql", "up --detach --wait mysql"]


def test_sql_server_is_no_free_software(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Docker(monkeypatch)
    monkeypatch.setenv("SA_DOCLOCK_TEST_PROPRIETARY", "no")
    with pytest.raises(UnavailableError, match="PROPRIETARY=no, and SQL Server is proprietary"):
        docker.start("mssql")
    assert (engine.said, engine.ran) == ([], [])


def test_ci_tests_every_database_and_gives_the_url_of_sql_server() -> None:
    lines = _lines_of(".github/workflows/ci.yml")
    others = [name for name in NAMES if name != "mssql"]
    assert f"database: [{', '.join(others)}, sqlite]" in lines
    assert 'release: ["2019", "2022", "2025"]' in lines
    assert 'versions: ["OFF", "ON"] # of READ_COMMITTED_SNAPSHOT' in lines
    assert "driver: [odbc18, pymssql]" in lines
    assert f"url: {URLS['mssql']}" in lines
    assert "run: make mssql-proof" in lines


@pytest.mark.parametrize("release", ["2019", "2022", "2025"])
def test_each_release_of_sql_server_has_a_profile(release: str) -> None:
    lines = _lines_of("docker-compose.yml")
    assert f"mssql-{release}:" in lines
    assert f'profiles: ["mssql-{release}"]' in lines


@pytest.mark.parametrize(
    "reported", ["lc-messages-dir  (No default value)", "", "lc-messages-dir  /no"]
)
def test_the_scripts_of_mariadb_are_found_beside_the_program(reported: str, tmp_path: Path) -> None:
    share = tmp_path / "share" / "mysql"
    share.mkdir(parents=True)
    with pytest.raises(UnavailableError, match=r"the SQL scripts of .*mariadbd are not found"):
        scripts_of(tmp_path / "sbin" / "mariadbd", reported)
    (share / "mariadb_system_tables.sql").touch()
    assert scripts_of(tmp_path / "sbin" / "mariadbd", reported) == share


def test_the_scripts_of_mariadb_are_where_it_says(tmp_path: Path) -> None:
    (tmp_path / "mysql_system_tables.sql").touch()
    reported = f"a\nlc-messages-dir    {tmp_path}\nlog-basename  (No default value)"
    assert scripts_of(Path("/usr/sbin/mariadbd"), reported) == tmp_path
