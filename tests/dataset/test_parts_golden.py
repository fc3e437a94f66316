"""Parts, and the order of a run over them, stay as they are: users resume runs across versions."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.dataset import parts
from penstock.dataset.pages import part_facts
from penstock.dataset.parquet import open_parquet
from penstock.dataset.parts import LeafFacts, PartFacts, part_borders

FILE = Path(__file__).parent.parent / "data" / "spark_pages" / "spark-4.2-v2.parquet"
MB = 1 << 20


@pytest.mark.parametrize(
    ("facts", "size", "count"),
    [
        (PartFacts(7_420, 130 * MB, [LeafFacts(127 * MB, 75, 0)], 260_000, 130_000), 100, 74),
        (PartFacts(7_420, 130 * MB, [LeafFacts(127 * MB, 75, 0)], 600_000, 600_000), 400, 19),
        (PartFacts(6_689, 127 * MB, [LeafFacts(114 * MB, 67, 0), LeafFacts(13 * MB, 14, 0)], 50_000, 50_000), 500, 13),
        (PartFacts(150_000, 180 * MB, [LeafFacts(101 * MB, 142, 0)], 1_200_000, 1_000_000), 23_320, 6),
        (PartFacts(60_000, 118 * MB, [LeafFacts(117 * MB, 125, 0)], 480_000, 160_000), 5_760, 10),
        (PartFacts(7_000, 121 * MB, [LeafFacts(120 * MB, 7, 2 * MB)], 200_000, 200_000), 2_048, 3),
        (PartFacts(1_000_000, 64 * MB, [LeafFacts(8 * MB, -1, 0)] * 2, 48 * MB, 6 * MB), 1_000_000, 1),
    ],
)
def test_parts_are_pinned(facts, size, count):
    borders = part_borders(facts)
    assert (int(borders[1]), len(borders) - 1) == (size, count)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(parts, "TARGET_BYTES", 3_000)
    monkeypatch.setattr(parts, "LEAST_BYTES", 2_000)
    monkeypatch.setattr(parts, "MOST_READ", 10)


def test_the_facts_of_a_file_are_pinned(small_parts):
    found = part_facts(open_parquet(FILE).part(0))
    assert (found.num_rows, found.num_bytes, found.rest_bytes, found.border_bytes) == (443, 29_011, 3_735, 3_735)
    assert found.leaves == [
        (9_251, 15, 0), (2_605, 9, 31), (1_664, 9, 70), (1_645, 12, 36), (1_546, 7, 0), (1_203, 9, 93), (1_073, 8, 43),
        (970, 6, 0),
    ]  # fmt: skip
    assert part_borders(found).tolist() == [0, 90, 180, 270, 360, 443]


@pytest.mark.filterwarnings("ignore:a batch draws:penstock.errors.PenstockWarning")
def test_the_order_of_a_file_is_pinned(small_parts):
    options = {"batch_size": 32, "shuffle": True, "seed": 7, "rank": 0, "world": 1, "shuffle_bytes": 8_000}
    with penstock.open(FILE).loader(**options) as loader:
        assert loader.state_dict() == {
            "version": 1, "order": "lanes-2", "dataset": "312abe5ac6fffec65f725eecd1fb4ed5", "rows":
            "36636b2193326b3e56cd40bac17b62b7", "seed": 7, "epoch": 0, "position": 0, "lanes": 1, "block": 90,
            "content": loader.state_dict()["content"],
        }  # fmt: skip
        ids = [int(i) for batch in loader for i in batch["id"]]
    digest = hashlib.sha256(np.array(ids, "<i8").tobytes()).hexdigest()
    assert digest == "4bcba58839ca5598409b8ff3d5b67051a45039cb72b741b9e04d8c6f419d4b93"
