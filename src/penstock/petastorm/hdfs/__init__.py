"""Petastorm's `hdfs` package: only the names of its module `namenode`, for programs that import them.

HDFS itself is reached by URL through `penstock.storage`. Nothing is defined here.
"""
