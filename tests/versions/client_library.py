"""MariaDB's client library, for the drivers that PyPI has as sources alone: mysqlclient and mariadb."""

from __future__ import annotations

from tests.support.servers import debian


def build_variables() -> dict[str, str]:
    """Return the environment variables with which pip builds them on Debian's packages, unpacked."""
    root = debian.unpacked_alone("libmariadb-dev", "libmariadb3", licence="LGPL-2.1")
    (library,) = root.glob("usr/lib/*/libmariadb.so.3")
    found, headers = library.parent, root / "usr/include/mariadb"
    links = f"-Wl,-rpath,{found}"  # to find it again when they run
    return {
        "MARIADB_CONFIG": str(root / "usr/bin/mariadb_config"),
        "MYSQLCLIENT_CFLAGS": f"-I{headers}",
        "MYSQLCLIENT_LDFLAGS": f"-L{found} -lmariadb {links}",
        "CPATH": str(headers),
        "LIBRARY_PATH": str(found),
        "LDFLAGS": links,
    }
