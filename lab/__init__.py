"""The lab beside the tests: servers, versions, the proof on a server of your own, mutants."""
