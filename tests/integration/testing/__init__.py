"""The test kit sa_doclock.testing."""
