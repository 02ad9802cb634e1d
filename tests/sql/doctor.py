"""The checks of a scripted server: all but those of tables, whose reflection no script can answer."""

from __future__ import annotations

from sqlalchemy import Engine

from sa_doclock import Finding
from sa_doclock.dialects import strategy_for
from sa_doclock.tools.doctor import checkouts, checks_in, models
from sa_doclock.tools.doctor.check import Subject
from sa_doclock.tools.doctor.checks import checks_for, findings_of, headers_of
from tests.sql.models import Base


def check_scripted(engine: Engine) -> list[Finding]:
    """Check it, with mapped classes."""
    strategy = strategy_for(engine)
    with engine.connect() as connection:
        subject = Subject(engine, connection, strategy, headers_of(Base))
        of_tables = checks_in(models, checkouts)
        checks = [check for check in checks_for(strategy) if check not in of_tables]
        return [finding for check in checks for finding in findings_of(check, subject)]
