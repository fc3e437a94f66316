"""A selection counts, finds and digests the rows that a filter left."""

import numpy as np

from penstock.source import Selection, pack_mask


def test_all_rows():
    rows = np.array([3, 5])
    selection = Selection.all(rows)
    rows[0] = 9
    assert selection.total == 8
    assert selection.rows_of(0) is None
    assert selection.bitmaps == {}


def test_some_rows():
    keep = np.array([0, 1, 0, 0, 0, 0, 0, 0, 1, 1], bool)
    selection = Selection(np.array([10, 3, 0]), {1: pack_mask(keep)})
    assert selection.rows_of(0) is None
    assert selection.rows_of(1).tolist() == [1, 8, 9]
    assert selection.rows_of(1).dtype == np.int64
    assert selection.rows_of(2).tolist() == []
    assert selection.total == 13


def test_digests_tell_selections_apart():
    one = Selection(np.array([4, 2]), {1: pack_mask(np.array([1, 1, 0], bool))})
    same = Selection(np.array([4, 2], np.int32), {1: pack_mask(np.array([1, 1, 0], bool))})
    other = Selection(np.array([4, 2]), {1: pack_mask(np.array([1, 0, 1], bool))})
    assert one.digest() == same.digest() != other.digest()
    assert len({one.digest(), other.digest(), Selection.all(np.array([4, 2])).digest()}) == 3


def test_the_digest_is_pinned():
    # Stored in the state of running jobs: changing it refuses their checkpoints.
    selection = Selection(np.array([4, 2]), {1: pack_mask(np.array([1, 1, 0], bool))})
    assert selection.digest() == "dcba65394e433c1de73532743253ed85"
    assert Selection.all(np.array([], np.int64)).digest() == "bec69309428e8b2ae4cbaf4b3aa62e9e"
