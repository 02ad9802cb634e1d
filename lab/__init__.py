"""Tools around the tests: servers, versions, the proof on your own server, mutants."""
