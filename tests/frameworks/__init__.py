"""sa_doclock in the frameworks of others: each file uses a framework as its page says."""

import pytest

#: A framework has nothing to do with the server; one with row locks and one without are enough.
ON_TWO_DATABASES = [
    pytest.mark.databases("sqlite", "postgresql"),
    pytest.mark.not_databases("sqlite-journal", "postgresql-pipeline"),
]
