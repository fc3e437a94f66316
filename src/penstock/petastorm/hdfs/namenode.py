"""Petastorm's names for reaching a Hadoop cluster by hand.

`penstock.open("hdfs://...")` and every reader resolve a cluster and its namenodes by themselves; these names are here
so that imports work, and raise on use.
"""

from __future__ import annotations

from functools import partial

from penstock.petastorm._later import later_class, later_function

__all__ = [
    "HAHdfsClient",
    "HdfsConnectError",
    "HdfsConnector",
    "HdfsNamenodeResolver",
    "MaxFailoversExceeded",
    "failover_all_class_methods",
    "namenode_failover",
]

_INSTEAD = "pass the hdfs:// URL itself, or an opened filesystem as filesystem="
_class = partial(later_class, __name__, extra="hdfs", instead=_INSTEAD)
_function = partial(later_function, __name__, extra="hdfs", instead=_INSTEAD)


class HdfsConnectError(OSError):
    """No namenode could be reached."""


class MaxFailoversExceeded(RuntimeError):
    """A call failed on every namenode."""


HAHdfsClient = _class("HAHdfsClient")
HdfsConnector = _class("HdfsConnector")
HdfsNamenodeResolver = _class("HdfsNamenodeResolver")
failover_all_class_methods = _function("failover_all_class_methods")
namenode_failover = _function("namenode_failover")
