"""`petastorm.tf_utils`: what cannot work is told: tensors without a graph, and numbers that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import penstock  # noqa: E402
from penstock.errors import SchemaError  # noqa: E402
from penstock.petastorm import make_reader  # noqa: E402
from penstock.petastorm._tf_values import Kind, column_of, value_of  # noqa: E402
from penstock.petastorm.tf_utils import tf_tensors  # noqa: E402


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    where = tmp_path_factory.mktemp("tf_utils") / "rows"
    penstock.write({"a": np.arange(5), "b": np.arange(5)}, where)
    return where.as_uri()


@pytest.mark.parametrize("fields", [["a"], ["a", "b"]])
def test_tensors_of_a_graph_need_a_graph(url: str, fields: list[str]) -> None:
    with make_reader(url, schema_fields=fields) as reader:
        with pytest.raises(RuntimeError, match=r"tf\.compat\.v1\.Graph\(\).*make_petastorm_dataset"):
            tf_tensors(reader)
        with tf.compat.v1.Graph().as_default():
            assert tf_tensors(reader).a.shape == ()


@pytest.mark.parametrize(
    ("values", "to"),
    [
        (np.array([1, 300]), np.int8),
        (np.array([1, 300], object), np.int8),
        (np.array([2**63], np.uint64), np.int64),
        (np.array([1e300]), np.float32),
    ],
)
def test_a_number_that_does_not_fit_is_an_error_and_not_another_number(values: Any, to: Any) -> None:
    kind = Kind("n", np.dtype(to), np.dtype(to), ())
    with pytest.raises(SchemaError, match="field 'n' has values that do not fit"):
        column_of(kind, values)
    assert column_of(kind, np.array([3, 4], values.dtype)).tolist() == [3, 4]
    assert value_of(kind, 5) == 5
