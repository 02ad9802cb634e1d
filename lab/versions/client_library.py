"""MariaDB's client library, for drivers that PyPI offers only as source: mysqlclient and mariadb."""

from __future__ import annotations

from pathlib import Path

from lab.servers import debian

DRIVERS = frozenset({"mysqlclient", "mariadb"})


def run_variables() -> dict[str, str]:
    """Return the environment variables that let it find its plugins, such as MySQL's authentication."""
    (plugins,) = _library().glob("usr/lib/*/libmariadb3/plugin")
    return {"MARIADB_PLUGIN_DIR": str(plugins)}


def _library() -> Path:
    return debian.unpacked_alone("libmariadb-dev", "libmariadb3", licence="LGPL-2.1")


def build_variables() -> dict[str, str]:
    """Return the environment variables that let pip build them on Debian's unpacked packages."""
    root = _library()
    (library,) = root.glob("usr/lib/*/libmariadb.so.3")
    found, headers = library.parent, root / "usr/include/mariadb"
    links = f"-Wl,-rpath,{found}"  # to find the library at run time
    return {
        "MARIADB_CONFIG": str(root / "usr/bin/mariadb_config"),
        "MYSQLCLIENT_CFLAGS": f"-I{headers}",
        "MYSQLCLIENT_LDFLAGS": f"-L{found} -lmariadb {links}",
        "CPATH": str(headers),
        "LIBRARY_PATH": str(found),
        "LDFLAGS": links,
    }
