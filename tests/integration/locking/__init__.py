"""Two connections, one document, a real database."""
