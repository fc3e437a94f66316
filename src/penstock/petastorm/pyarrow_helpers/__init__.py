"""Petastorm's helpers for Arrow tables: the module `batching_table_queue`.

For programs that batch tables themselves; the readers do not use it. Nothing is defined here.
"""
