"""Into how many parts a row group is divided: by its footer alone, at rows where pages may begin."""

import numpy as np
import pytest

from penstock.dataset.parts import LEAST_BYTES, TARGET_BYTES, PartFacts, part_borders, rows_of_pages

MB = 1 << 20


def sizes(*facts: int) -> list[int]:
    return np.diff(part_borders(PartFacts(*facts))).tolist()


class TestBorders:
    def test_a_row_group_of_pictures_that_spark_wrote(self):
        # 7,454 pictures of 18 KB in 128 MB: Spark cuts a page every 100 rows
        found = sizes(7_454, 128 * MB, 128 * MB, 75)
        assert found == [100] * 74 + [54]

    def test_large_cells_of_which_spark_puts_a_hundred_into_a_page(self):
        assert sizes(1_280, 128 * MB, 128 * MB, 13) == [100] * 12 + [80]

    def test_large_cells_with_pages_of_their_own(self):
        assert sizes(1_280, 128 * MB, 128 * MB, 1_280) == [20] * 64

    def test_a_table_of_forty_narrow_columns_has_few_parts(self):
        assert len(sizes(1_000_000, 128 * MB, 4 * MB, 50)) <= 4

    @pytest.mark.parametrize(
        "facts",
        [
            (100, 128 * MB, 128 * MB, 0),  # no offset index
            (100, 128 * MB, 128 * MB, 1),  # one page
            (1, 128 * MB, 128 * MB, 9),
            (1_000, 2 * MB, 2 * MB, 100),
            (1_000, 2_800_000, 2_800_000, 100),
            (1_000, 128 * MB, MB, 100),  # narrow columns
            (1_000, 0, 0, 7),
            (0, 0, 0, 0),
        ],
    )
    def test_one_part(self, facts):
        assert sizes(*facts) == [facts[0]]

    def test_pages_that_the_writer_has_not_counted_are_taken_for_a_megabyte_each(self):
        assert sizes(12_800, 128 * MB, 128 * MB, -1) == sizes(12_800, 128 * MB, 128 * MB, 128)

    def test_any_facts(self):
        rng = np.random.default_rng(0)
        for _ in range(2_000):
            rows, num_bytes = int(10 ** rng.uniform(0, 7)), int(10 ** rng.uniform(0, 10))
            widest = int(num_bytes * rng.random())
            pages = int(rng.integers(1, max(2, min(rows, 1 + widest // 1000))))
            borders = part_borders(PartFacts(rows, num_bytes, widest, pages))
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
    [(7_454, 75, 100), (7_454, 8, 1024), (7_454, 38, 200), (1_280, 1_280, 1), (300, 30, 10), (10, 7, 1), (5, 2, 4)],
)
def test_equal_pages_are_guessed_from_their_number(rows, pages, each):
    assert rows_of_pages(rows, pages) == each


@pytest.mark.parametrize("each", [1, 2, 32, 64, 100, 200, 400, 1024, 2048, 20_000])
def test_pages_as_writers_cut_them_are_found(each):
    for rows in (50 * each + each // 3 + 1, 51 * each, 70 * each - 1):
        assert rows_of_pages(rows, -(-rows // each)) == each
