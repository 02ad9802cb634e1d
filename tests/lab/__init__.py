"""Tests of the lab: its choice of tests, its servers, its mutants, the pages it writes."""
