"""Random programs of one session against its promises: what it writes, and whose lock it has."""
