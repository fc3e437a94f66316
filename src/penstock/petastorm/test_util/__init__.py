"""Petastorm's helpers for tests of training code: a reader that makes its rows up, and a measure of shuffling.

Modules `reader_mock` and `shuffling_analysis`. Nothing is defined here.
"""
