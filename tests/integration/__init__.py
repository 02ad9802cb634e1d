"""Tests on the matrix of databases, one folder for each package of sa_doclock."""
