"""``python -m tests.sql.regenerate`` rewrites the golden files: read the diff before you commit.

They are the same for SQLAlchemy 2.1 and 2.0 (from 2.0.45, which writes FOR SHARE for MySQL).
"""

from __future__ import annotations

from tests.sql import test_mssql_migrations, test_mssql_waits
from tests.sql.golden import FOLDER, compiled, sent
from tests.sql.servers import DATABASES


def main() -> None:
    for module in (test_mssql_migrations, test_mssql_waits):
        module.GOLDEN.parent.mkdir(parents=True, exist_ok=True)
        module.GOLDEN.write_text(module.golden(), encoding="utf-8")
        print(module.GOLDEN)
    for kind in (compiled, sent):
        folder = FOLDER / kind.__name__
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.sql"):
            old.unlink()
        for database in DATABASES:
            path = folder / f"{database}.sql"
            path.write_text(kind(database), encoding="utf-8")
            print(path)


if __name__ == "__main__":
    main()
