"""A module of constants that the program of test_function_globals.py reads, as programs read their settings."""

SCALE = 2
