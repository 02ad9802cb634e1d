"""Tools for operators: the command line, the checks, explanations and reports; nothing imports them but programs."""
