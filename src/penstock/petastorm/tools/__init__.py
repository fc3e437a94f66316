"""Petastorm's command line tools: copying a dataset, and the arguments of commands that start Spark.

Nothing is defined here.
"""
