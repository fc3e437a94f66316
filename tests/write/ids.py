"""Datasets of one column of numbers, by which rows are told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import penstock
from penstock.codecs import ScalarCodec
from penstock.schema.unischema import Unischema, UnischemaField

if TYPE_CHECKING:
    from collections.abc import Iterator

IDS = Unischema("Ids", [UnischemaField("id", np.int64, (), ScalarCodec(), False)])


def rows(start: int, stop: int) -> Iterator[dict[str, Any]]:
    """Yield rows one by one."""
    return ({"id": i} for i in range(start, stop))


def ids(url: Any) -> list[int]:
    """Return what a dataset holds, in its order."""
    dataset = penstock.open(url)
    return [int(i) for i in dataset.take(np.arange(len(dataset)))["id"]]
