"""Petastorm's benchmark of a reader: `throughput` for programs, `cli` for the shell.

Measures what one loop over `make_reader` gives on this machine. Nothing is defined here.
"""
