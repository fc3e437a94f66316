"""Into how many parts a row group is divided: by its footer alone, at rows where pages may begin."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.dataset import parts
from penstock.dataset.pages import narrow_columns, open_pages, part_facts
from penstock.dataset.parquet import open_parquet
from penstock.dataset.parts import LEAST_BYTES, TARGET_BYTES, LeafFacts, PartFacts, part_borders, rows_of_pages

MB = 1 << 20


def sizes(num_rows, num_bytes, *leaves, rest=0, again=0) -> list[int]:
    facts = PartFacts(num_rows, num_bytes, [LeafFacts(*leaf) for leaf in leaves], rest, again)
    return np.diff(part_borders(facts)).tolist()


class TestBorders:
    def test_a_row_group_of_pictures_that_spark_wrote(self):
        # 7,454 pictures of 18 KB in 128 MB: Spark cuts a page every 100 rows. Beside them labels and numbers.
        narrow = 2 * 8 * 7_454
        found = sizes(7_454, 128 * MB, (128 * MB, 75, 0), rest=narrow, again=narrow)
        assert found == [100] * 74 + [54]

    def test_large_cells_of_which_spark_puts_a_hundred_into_a_page(self):
        assert sizes(1_280, 128 * MB, (128 * MB, 13, 0)) == [100] * 12 + [80]

    def test_large_cells_with_pages_of_their_own(self):
        assert sizes(1_280, 128 * MB, (128 * MB, 1_280, 0)) == [20] * 64

    def test_a_second_column_with_pages_of_twice_as_many_rows(self):
        assert sizes(6_000, 128 * MB, (100 * MB, 60, 0), (28 * MB, 30, 0)) == [200] * 30

    def test_pages_of_any_length_make_large_parts(self):
        # 142 pages of about 1,056 rows: parts cut pages, and few parts cut few of them
        found = sizes(150_000, 140 * MB, (101 * MB, 142, 0))
        assert 142 * 0.1 - 4 <= len(found) <= 142 * 0.1 + 1

    def test_columns_that_every_part_reads_make_few_parts(self):
        assert len(sizes(7_454, 128 * MB, (114 * MB, 75, 0), (14 * MB, 0, 0))) == 1
        assert len(sizes(7_454, 128 * MB, (128 * MB, 75, 0), rest=MB, again=MB)) <= 13
        assert len(sizes(7_454, 128 * MB, (128 * MB, 75, MB))) <= 13  # a dictionary

    def test_a_table_of_forty_narrow_columns_has_one_part(self):
        assert len(sizes(1_000_000, 128 * MB, (4 * MB, 50, 0), rest=124 * MB, again=39 * MB)) == 1

    @pytest.mark.parametrize(
        ("num_rows", "num_bytes", "leaf"),
        [
            (100, 128 * MB, (128 * MB, 0, 0)),  # no offset index
            (100, 128 * MB, (128 * MB, 1, 0)),  # one page
            (1, 128 * MB, (128 * MB, 9, 0)),
            (1_000, 2 * MB, (2 * MB, 100, 0)),
            (1_000, 2_800_000, (2_800_000, 100, 0)),
            (1_000, 128 * MB, (MB, 100, 0)),  # narrow columns
            (1_000, 0, (0, 7, 0)),
            (0, 0, (0, 0, 0)),
        ],
    )
    def test_one_part(self, num_rows, num_bytes, leaf):
        assert sizes(num_rows, num_bytes, leaf) == [num_rows]

    def test_no_column_is_one_part(self):
        assert sizes(5, 0) == [5]

    def test_pages_that_the_writer_has_not_counted_are_taken_for_a_megabyte_each(self):
        # 128 pages of which nobody knows where they begin
        assert 10 <= len(sizes(12_800, 128 * MB, (128 * MB, -1, 0))) <= 13

    def test_any_facts(self):
        rng = np.random.default_rng(0)
        for _ in range(2_000):
            rows, num_bytes = int(10 ** rng.uniform(0, 7)), int(10 ** rng.uniform(0, 10))
            widest = int(num_bytes * rng.random())
            pages = int(rng.integers(1, max(2, min(rows, 1 + widest // 1000))))
            other = LeafFacts(int(widest * rng.random()), int(rng.integers(-1, 50)), int(rng.integers(0, 1000)))
            facts = PartFacts(rows, num_bytes, [LeafFacts(widest, pages, 0), other], 1_000, 1_000)
            borders = part_borders(facts)
            found = np.diff(borders)
            assert (borders[0], borders[-1]) == (0, rows)
            assert (found > 0).all()
            assert len(set(found[:-1].tolist())) <= 1
            if len(found) > 1:
                assert found[-1] <= 1.5 * found[0]
                assert widest * found[0] / rows > LEAST_BYTES / 2
                assert num_bytes * found[0] / rows > TARGET_BYTES / 2


@pytest.mark.parametrize(
    ("rows", "pages", "each"),
    [
        (7_454, 75, (100, True)),
        (7_454, 8, (1024, True)),
        (7_454, 38, (200, True)),
        (1_280, 1_280, (1, True)),
        (1_280, 1, (1_280, True)),
        (60_000, 3, (20_000, True)),
        (60_000, 125, (480, False)),  # Spark: 507, 482, 482 ... 238
        (150_000, 142, (1_060, False)),
        (10, 7, (1, False)),
        (5, 2, (4, False)),
    ],
)
def test_equal_pages_are_guessed_from_their_number(rows, pages, each):
    assert rows_of_pages(rows, pages) == each


@pytest.mark.parametrize("each", [1, 2, 32, 64, 100, 200, 400, 1024, 2048, 20_000])
def test_pages_as_writers_cut_them_are_found(each):
    for rows in (50 * each + each // 3 + 1, 51 * each, 70 * each - 1):
        assert rows_of_pages(rows, -(-rows // each)) == (each, True)


class TestBytes:
    """Files as pyarrow writes them: what parts read of them, over what they need."""

    @pytest.fixture(autouse=True)
    def small_parts(self, monkeypatch):
        monkeypatch.setattr(parts, "TARGET_BYTES", 20_000)
        monkeypatch.setattr(parts, "LEAST_BYTES", 10_000)

    @pytest.mark.parametrize("batch", [7, 10, 32, 100])
    @pytest.mark.parametrize("widths", [(500,), (500, 8), (500, 200), (500, 500, 20), (50,), (300, 40, 40)])
    def test_little_is_read_twice(self, tmp_path, batch, widths):
        rng, rows = np.random.default_rng(len(widths)), 4_000
        columns = {
            f"c{number}": [rng.bytes(int(n)) for n in rng.integers(width // 2, width * 3 // 2 + 1, rows)]
            for number, width in enumerate(widths)
        }
        pq.write_table(
            pa.table(columns), tmp_path / "file.parquet", write_page_index=True, data_page_size=10_000,
            write_batch_size=batch, use_dictionary=False, row_group_size=rows,
        )  # fmt: skip
        group = open_parquet(tmp_path).part(0)
        borders = part_borders(part_facts(group))
        pages = open_pages(group, list(columns))
        narrow = narrow_columns(pages, borders)
        stored = {chunk.path: chunk.stop - chunk.start for chunk in pages.chunks}
        read = pages.without(narrow).bytes_of(borders).sum() + sum(stored[name] for name in narrow) * (len(borders) - 1)
        assert read <= 1.15 * sum(stored.values())
        if widths[0] == 500 and batch == 32:
            assert len(borders) > 5
