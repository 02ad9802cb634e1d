"""Tools for operators: the command line, the checks, explanations and reports; only programs import
them.
"""
