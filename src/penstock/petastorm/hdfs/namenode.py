"""Petastorm's names for reaching a Hadoop cluster by hand.

`penstock.open("hdfs://...")` and every reader resolve a cluster and its namenodes by themselves. These names exist so
that programs that only import them run; they raise on use.
"""

from __future__ import annotations

from typing import NoReturn

__all__ = [
    "HAHdfsClient",
    "HdfsConnectError",
    "HdfsConnector",
    "HdfsNamenodeResolver",
    "MaxFailoversExceeded",
    "failover_all_class_methods",
    "namenode_failover",
]


class HdfsConnectError(OSError):
    """No namenode could be reached."""


class MaxFailoversExceeded(RuntimeError):
    """A call failed on every namenode."""


class HdfsNamenodeResolver:
    """Not in this version of Penstock: raises when it is made."""

    def __init__(self, *_: object, **__: object) -> None:
        _raise(type(self).__name__)


class HdfsConnector(HdfsNamenodeResolver):
    """Not in this version of Penstock: raises when it is made."""


class HAHdfsClient(HdfsNamenodeResolver):
    """Not in this version of Penstock: raises when it is made."""


def failover_all_class_methods(*_: object, **__: object) -> NoReturn:
    """Raise: not in this version of Penstock."""
    _raise("failover_all_class_methods")


def namenode_failover(*_: object, **__: object) -> NoReturn:
    """Raise: not in this version of Penstock."""
    _raise("namenode_failover")


def _raise(name: str) -> NoReturn:
    raise NotImplementedError(
        f"{__name__}.{name} is not in this version of Penstock yet (it comes with the extra penstock[hdfs]); pass the "
        "hdfs:// URL itself, or an opened filesystem as filesystem="
    )
