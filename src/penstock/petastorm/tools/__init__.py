"""Petastorm's command line tools; their modules can be imported, and say on use that they are not in this version.

Copying a dataset and setting Spark up are Spark's business and come with it. Nothing is defined here.
"""
