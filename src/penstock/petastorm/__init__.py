"""The names that users of Petastorm know, on the engine of this library.

The tree mirrors Petastorm's, so that moving over is one change in the imports; every file is thin. Importing it
imports no framework, no Spark and no pandas.
"""
