"""Worker processes and the process that holds their `Batches` agree on the pass, whatever happens to the batches."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402

import penstock  # noqa: E402
from penstock.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec  # noqa: E402
from penstock.dataset import parts  # noqa: E402
from penstock.errors import BadFile, DecodeError, PenstockWarning, PlanError, StateMismatch  # noqa: E402
from penstock.testing import FaultySource, MemorySource, make_parquet  # noqa: E402
from penstock.torch import Batches, loader  # noqa: E402
from penstock.torch.pass_board import BegunPass, PassBoard  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*set_vital:UserWarning"),
]
OPTIONS = {"batch_size": 7, "shuffle": True, "seed": 5}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """51 rows of two columns of numbers."""
    return make_parquet(tmp_path_factory.mktemp("data") / "numbers")


@pytest.fixture(scope="module")
def want(data):
    """The first five passes."""
    with loader(data, **OPTIONS) as batches:
        return [ids(batches) for _ in range(5)]


def ids(batches):
    return [(batch["id"] if isinstance(batch, dict) else batch[1]).tolist() for batch in batches]


def as_pair(batch):
    return batch["value"], batch["id"]


def workers_of(batches, num_workers=2, **options):
    return DataLoader(batches, batch_size=None, num_workers=num_workers, **options)


# -- passes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_workers", "method"), [(0, None), (1, "fork"), (3, "fork"), (2, "spawn")])
def test_a_collate_fn_may_give_anything_and_passes_go_on(data, want, num_workers, method):
    made = workers_of(Batches(data, **OPTIONS), num_workers, collate_fn=as_pair, multiprocessing_context=method)
    assert [ids(made) for _ in range(3 if method != "spawn" else 2)] == want[: 3 if method != "spawn" else 2]


def test_seeding_torch_alike_before_every_epoch_does_not_repeat_a_pass(data, want):
    made = workers_of(Batches(data, **OPTIONS), collate_fn=as_pair)
    got = []
    for epoch in range(4):
        torch.manual_seed(epoch % 2)
        got.append(ids(made))
    assert got == want[:4]


def test_two_iterations_at_once_are_each_of_one_pass(data, want):
    made = workers_of(Batches(data, **OPTIONS), collate_fn=as_pair)
    pairs = list(zip(made, made, strict=True))
    assert {str(ids(side)) for side in zip(*pairs, strict=True)} <= {str(one) for one in want[:2]}


def test_with_and_without_workers_in_turn(data, want):
    batches = Batches(data, **OPTIONS)
    made = workers_of(batches, collate_fn=as_pair)
    assert [ids(made), ids(batches), ids(made), ids(made), ids(batches)] == want


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda batches: pickle.loads(pickle.dumps(batches))])
def test_a_copy_leaves_the_original_alone(data, want, copied):
    batches = Batches(data, **OPTIONS)
    twin = copied(batches)
    made = workers_of(batches, 1)
    assert [ids(made), ids(made)] == want[:2]
    assert ids(workers_of(twin, 1)) == want[0]
    assert ids(made) == want[2]
    assert ids(copied(batches)) == want[3]


# -- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_that_stay_follow_set_epoch_and_load_state_dict(data, want, method):
    batches = Batches(data, **OPTIONS)
    made = workers_of(batches, persistent_workers=True, multiprocessing_context=method)
    assert ids(made) == want[0]
    batches.set_epoch(3)
    assert [ids(made), ids(made)] == want[3:5]
    with loader(data, **OPTIONS) as other:
        list(itertools.islice(other, 3))
        batches.load_state_dict(other.state_dict())
    assert batches.state_dict()["position"] == 21
    assert [ids(made), ids(made)] == [want[0][3:], want[1]]
    with pytest.raises(PlanError, match="StatefulDataLoader"):
        batches.state_dict()
    batches.set_epoch(1)
    assert batches.state_dict()["epoch"] == 1
    assert [ids(made), ids(made)] == want[1:3]


def test_an_order_in_the_middle_of_a_pass_is_for_the_next_one(data, want):
    batches = Batches(data, **OPTIONS)
    for stays in (False, True):
        made = workers_of(batches, persistent_workers=stays)
        batches.set_epoch(0)
        got = []
        for batch in made:
            if not got:
                batches.set_epoch(4)
            got.append(batch["id"].tolist())
        assert got == want[0]
        assert ids(made) == want[4]


def test_a_state_too_long_for_running_workers_is_refused_there():
    board = PassBoard()
    assert board.command({"left": [[n, n + 1] for n in range(10_000)]}) == 1
    with pytest.raises(ValueError, match="more than"):
        board.commanded()


def test_the_board_of_another_process_is_not_touched(data, want):
    batches = Batches(data, **OPTIONS)
    before = batches._board
    before.owner = -1
    made = workers_of(batches)
    assert [ids(made), ids(made)] == want[:2], "batches say on arrival which pass they are of"
    assert before.latest() is None
    assert batches._board is not before


# -- the board itself -------------------------------------------------------------------------------------------------


def test_workers_of_an_iteration_find_the_same_pass():
    board = PassBoard()
    assert [board.begin(11, worker, 0, None, 5) for worker in (1, 0)] == [BegunPass(1, 0, 5)] * 2
    assert [board.begin(22, worker, 0, None, 5) for worker in (0, 1)] == [BegunPass(2, 0, 6)] * 2
    assert board.begin(11, 2, 0, None, 5) == BegunPass(1, 0, 5), "a late one of the first"
    assert [board.begin(11, worker, 0, None, 5) for worker in (0, 1)] == [BegunPass(3, 0, 7)] * 2, "the same seed again"
    assert board.latest() == BegunPass(3, 0, 7)


def test_after_an_order_passes_count_from_there():
    board = PassBoard()
    board.begin(1, 0, 0, None, 0)
    commands = board.command({"epoch": 9})
    assert board.commanded() == {"epoch": 9}
    assert board.begin(2, 0, commands, None, 9).in_pass == 9
    assert board.begin(3, 0, commands, None, 9).in_pass == 10
    assert board.begin(4, 0, commands, 3, 9).in_pass == 3, "a worker that was restored knows better"
    assert board.begin(5, 0, commands, None, 9).in_pass == 4


def test_many_iterations_and_workers_beyond_what_is_remembered():
    board = PassBoard()
    for number in range(1, 50):
        for worker in (0, 7, 511, 512, 9999):
            assert board.begin(number, worker, 0, None, 0) == BegunPass(number, 0, number - 1)


def test_skipped_rows_are_added_up_in_each_iteration_and_each_counts_once():
    board = PassBoard(9)
    rows = [("a.parquet", part, row) for part in range(3) for row in range(3)]
    assert [board.skip(1, rows[:2]), board.skip(1, rows[1:5]), board.skip(1, rows[:1])] == [2, 5, 5]
    assert [board.skip(2, rows[:1]), board.skip(2, rows[4:5]), board.skip(2, rows)] == [1, 2, 9]
    board = PassBoard(2)
    assert [board.skip(7, rows[:2]), board.skip(7, rows), board.skip(8, rows[:1])] == [2, 3, 1]


# -- damaged rows, forgotten options ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """60 pictures, every tenth of them junk."""
    fields = [
        penstock.UnischemaField("id", np.int64, (), ScalarCodec(), False),
        penstock.UnischemaField("image", np.uint8, (8, 8, 3), CompressedImageCodec("jpeg", 90), False),
    ]
    folder = tmp_path_factory.mktemp("damaged") / "data"
    rows = [{"id": i, "image": np.full((8, 8, 3), i, np.uint8)} for i in range(60)]
    penstock.write(rows, folder, schema=penstock.Unischema("Pictures", fields))
    for file in folder.glob("*.parquet"):
        table = pq.read_table(file)
        at = table.schema.get_field_index("image")
        cells = [b"junk" if i % 10 == 0 else cell for i, cell in enumerate(table.column(at).to_pylist())]
        field = table.schema.field(at)
        pq.write_table(table.set_column(at, field, pa.array(cells, field.type)), file)
    return folder


@pytest.mark.parametrize("num_workers", [0, 3])
def test_the_limit_of_damaged_rows_is_for_all_workers_together(damaged, num_workers):
    def made(limit):
        return workers_of(Batches(damaged, batch_size=5, on_error="skip", skip_limit=limit), num_workers)

    enough = made(6)
    assert [sum(len(batch["id"]) for batch in enough) for _ in range(2)] == [54, 54]
    with pytest.raises(DecodeError, match="more than skip_limit=5"):
        list(made(5))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_forgotten_batch_size_none_is_noticed(data, num_workers):
    with warnings.catch_warnings():
        warnings.simplefilter("error", PenstockWarning)  # a worker hands errors on
        with pytest.raises(PenstockWarning, match="pass batch_size=None"):
            next(iter(DataLoader(Batches(data, **OPTIONS), num_workers=num_workers)))
        assert (
            next(iter(DataLoader(Batches(data, **OPTIONS), batch_size=2, collate_fn=len, num_workers=num_workers))) == 2
        )


# -- states of a StatefulDataLoader -----------------------------------------------------------------------------------


def stateful(data, num_workers, every=1, **options):
    stateful_dataloader = pytest.importorskip("torchdata.stateful_dataloader")
    batches = Batches(data, **{**OPTIONS, **options})
    return stateful_dataloader.StatefulDataLoader(
        batches, batch_size=None, num_workers=num_workers, snapshot_every_n_steps=every
    )


@pytest.mark.parametrize(("num_workers", "every"), [(0, 1), (1, 3), (2, 1), (2, 3), (2, 5)])
def test_a_state_with_rare_snapshots_loses_and_repeats_nothing(data, want, num_workers, every):
    made = stateful(data, num_workers, every)
    running = iter(made)
    for _ in range(4):
        next(running)
    state = made.state_dict()
    del running
    batches = Batches(data, **OPTIONS)
    batches.load_state_dict(state)
    assert ids(batches) == want[0][4:]
    with loader(data, **OPTIONS) as native:
        native.load_state_dict(state)
        assert ids(native) == want[0][4:]
    again = stateful(data, num_workers, every)
    again.load_state_dict(state)
    assert [ids(again), ids(again)] == [want[0][4:], want[1]]


def test_a_rare_snapshot_of_other_batches_is_refused(data):
    made = stateful(data, 1, 5)
    running = iter(made)
    for _ in range(3):
        next(running)
    state = made.state_dict()
    del running
    with loader(data, **{**OPTIONS, "batch_size": 3}) as other:
        with pytest.raises(StateMismatch, match=r"3 batches older.*of 7 rows.*have 3 here"):
            other.load_state_dict(state)
        assert other.state_dict()["position"] == 0


def test_steps_beyond_the_end_of_a_pass_are_the_next_one(data):
    batches = Batches(data, **OPTIONS)
    one = {**batches.state_dict(), "worker": {"index": 0, "count": 1, "over": False, "rows": 7}}
    batches.load_state_dict({"_snapshot": {"w": one}, "_steps_since_snapshot": 8})
    assert (batches.state_dict()["epoch"], batches.state_dict()["position"]) == (1, 0)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_row_that_every_epoch_skips_counts_once_against_the_limit(num_workers):
    source = MemorySource({"x": list(range(21))}, [10, 1, 10])
    faulty = FaultySource(source, {1: BadFile("damaged", path="rows", row_group=1)})
    options = {"batch_size": 4, "rank": 0, "world": 1, "epochs": 3, "on_error": "skip"}

    def rows(limit):
        batches = Batches(penstock.open(faulty), skip_limit=limit, **options)
        return sum(len(batch["x"]) for batch in workers_of(batches, num_workers))

    assert rows(1) == 60
    with pytest.raises(DecodeError, match=r"skip_limit=0.*rows, part 1, row 0"):
        rows(0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_rows_of_different_parts_of_a_row_group_count_each_against_the_limit(tmp_path, monkeypatch, num_workers):
    monkeypatch.setattr(parts, "TARGET_BYTES", 20_000)
    monkeypatch.setattr(parts, "LEAST_BYTES", 10_000)
    field = penstock.UnischemaField("x", np.uint8, (900,), NdarrayCodec(), nullable=False)
    arrays = np.random.default_rng(0).integers(0, 256, (400, 900), np.uint8)
    cells = [bytes(field.codec.encode(field, array)) if i % 100 else b"" for i, array in enumerate(arrays)]
    schema = penstock.Unischema("cells", [field])
    pq.write_table(
        pa.table({"x": cells}), tmp_path / "a.parquet", use_dictionary=False, compression="none", write_page_index=True,
        write_batch_size=10, data_page_size=5_000,
    )  # fmt: skip
    options = {"batch_size": 8, "rank": 0, "world": 1, "epochs": 2, "on_error": "skip", "shuffle": True}

    def rows(limit):
        batches = Batches(penstock.open(tmp_path, schema=schema), skip_limit=limit, **options)
        assert batches.state_dict()["order"] == "lanes-2"
        fork = "fork" if num_workers else None  # others do not see what is patched
        return sum(len(batch["x"]) for batch in workers_of(batches, num_workers, multiprocessing_context=fork))

    assert rows(4) == 2 * 396
    with pytest.raises(DecodeError, match=r"skip_limit=3.*a\.parquet, row group 0, row (0|100|200|300),"):
        rows(3)
