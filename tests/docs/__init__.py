"""The tests of the README and docs/: their blocks, their samples, their generated parts."""
