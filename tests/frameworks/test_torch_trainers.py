"""Frameworks that share out data among ranks: every row goes to exactly one of two, or the loader refuses.

The recipes are the code blocks of docs/trainers.md, run as they stand by real ranks. What a recipe leaves to the user
(`step`, the model) is put in front of it, and notes the rows.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from itertools import chain

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402

import penstock  # noqa: E402
from penstock.errors import PlanError  # noqa: E402
from penstock.torch import Batches, loader  # noqa: E402
from tests.house import ROOT  # noqa: E402
from tests.test_docs import FENCE  # noqa: E402

NUM_ROWS = 897
"""Neither divisible by two ranks nor by batches of 64."""

NOTES = """
import atexit, json, os, torch
noted = []

def write_notes(rank):
    with open(f"rows-{rank}.json", "w") as file:
        json.dump(noted, file)
"""
STEP = """
def step(batch):
    noted.extend(batch["id"][batch.get("_valid", slice(None))].tolist())

atexit.register(write_notes, os.environ["RANK"])
"""
MODEL = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, id, x, _valid):
        noted.extend(id[_valid].tolist())
        return {"loss": self.layer(x.reshape(-1, 1)).mean()}

model = Model()
atexit.register(write_notes, os.environ["RANK"])
"""
MODULE = """
import lightning.pytorch as pl

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, step):
        noted.extend(batch["id"][batch["_valid"]].tolist())
        return self.layer(batch["x"][:, None]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_end(self):
        write_notes(self.global_rank)

module = Module()
"""
RAY = """
import ray

path = os.path.abspath("train")
folder = os.getcwd()
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

def step(batch):
    rank = ray.train.get_context().get_world_rank()
    with open(f"{folder}/rows-{rank}.jsonl", "a") as file:
        file.write(json.dumps(batch["id"][batch["_valid"]].tolist()) + "\\n")
"""


@pytest.fixture
def folder(tmp_path):
    columns = {"id": np.arange(NUM_ROWS), "x": np.linspace(0, 1, NUM_ROWS, dtype=np.float32)}
    penstock.write(columns, tmp_path / "train", row_group_bytes=2000)
    return tmp_path


def recipe(heading, number=0):
    """A code block of the page, under a heading."""
    page = (ROOT / "docs" / "trainers.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [match[3] for match in FENCE.finditer(section)][number]


def start(folder, code, **variables):
    (folder / "program.py").write_text(
        "if __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in code.splitlines()), encoding="utf-8"
    )
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    environment = {**kept, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "program.py"],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def outputs(processes):
    """Wait for programs; return how each ended and what it said."""
    try:
        said = [process.communicate(timeout=200)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, text) for process, text in zip(processes, said, strict=True)]


def run_ranks(folder, code):
    """Run a program on two ranks, as torchrun and `accelerate launch` do."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ended = outputs([start(folder, code, RANK=str(rank), LOCAL_RANK=str(rank), **common) for rank in range(2)])
        if not any("EADDRINUSE" in said for _, said in ended):  # another program was given the port meanwhile
            return ended


def assert_every_row_once(folder, passes=1):
    noted = [json.loads((folder / f"rows-{rank}.json").read_text()) for rank in range(2)]
    counts = Counter(row for rows in noted for row in rows)
    assert counts == dict.fromkeys(range(NUM_ROWS), passes)
    assert min(map(len, noted)) >= passes * (NUM_ROWS // 2)


def changed(code, old, new):
    assert old in code
    return code.replace(old, new)


@pytest.mark.parametrize("number", [0, 1])
def test_accelerate_gives_every_row_to_one_rank(folder, number):
    pytest.importorskip("accelerate")
    code = changed(recipe("Accelerate", number), "Accelerator()", "Accelerator(cpu=True)")
    for code_ended, said in run_ranks(folder, NOTES + STEP + code):
        assert code_ended == 0, said
    assert_every_row_once(folder)


PREPARED = """
from accelerate import Accelerator, DataLoaderConfiguration
from penstock.torch import Batches
from torch.utils.data import DataLoader

class Around(torch.utils.data.IterableDataset):
    def __init__(self, inner):
        self.inner = inner

    def __iter__(self):
        yield from self.inner

def prepared(dispatch, num_workers, around=lambda made: made, **options):
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
    made = around(Batches("train", batch_size=64, shuffle=True, remainder="uneven", **options))
    return accelerator.prepare(DataLoader(made, batch_size=None, num_workers=num_workers))
"""
REFUSED = """
for form in [(True, 0), (True, 2), (False, 0), (False, 2)]:
    try:
        for batch in prepared(*form):
            step(batch)
    except Exception as error:
        print(type(error).__name__, error)
"""
AROUND = """
for batch in prepared(True, 0, Around):
    step(batch)
"""
DISPATCHED = """
for num_workers in (0, 2):
    for batch in prepared(True, num_workers, rank=0, world=1, filters=[("id", "<", 896)]):
        step(batch)
"""


def test_accelerate_is_refused_where_it_would_share_out_again(folder):
    pytest.importorskip("accelerate")
    for code_ended, said in run_ranks(folder, NOTES + STEP + PREPARED + REFUSED):
        assert code_ended == 0, said
        assert said.count("PlanError Batches gives this process its part already") == 4, said
    noted = [json.loads((folder / f"rows-{rank}.json").read_text()) for rank in range(2)]
    assert noted == [[], []]


def test_a_dataset_around_batches_is_refused_by_the_rank_that_reads(folder):
    pytest.importorskip("accelerate")
    (code_ended, said), (other_ended, _) = run_ranks(folder, NOTES + STEP + PREPARED + AROUND)
    assert "PlanError: Batches gives this process its part already" in said
    assert code_ended == 1
    assert other_ended != 0, "it has lost the other rank"


def test_one_process_reads_for_all_where_the_user_says_so(folder):
    pytest.importorskip("accelerate")
    for code_ended, said in run_ranks(folder, NOTES + STEP + PREPARED + DISPATCHED):
        assert code_ended == 0, said
    noted = [json.loads((folder / f"rows-{rank}.json").read_text()) for rank in range(2)]
    assert Counter(chain(*noted)) == dict.fromkeys(range(896), 2)
    assert len(noted[0]) == len(noted[1])


def test_accelerate_saves_the_place_of_a_loader(folder):
    accelerate = pytest.importorskip("accelerate")
    options = {"batch_size": 64, "shuffle": True, "seed": 7, "rank": 0, "world": 1}
    with loader(folder / "train", **options) as batches:
        accelerator = accelerate.Accelerator(cpu=True)
        accelerator.register_for_checkpointing(accelerator.prepare(batches))
        list(batches)
        rows = iter(batches)
        next(rows)
        accelerator.save_state(folder / "saved")
        want = [batch["id"].tolist() for batch in rows]
    with loader(folder / "train", **options) as batches:
        accelerator = accelerate.Accelerator(cpu=True)
        accelerator.register_for_checkpointing(batches)
        accelerator.load_state(folder / "saved")
        assert [batch["id"].tolist() for batch in batches] == want


def test_a_prepared_data_loader_does_not_lose_a_loaded_state(folder):
    accelerate = pytest.importorskip("accelerate")
    options = {"batch_size": 64, "shuffle": True, "seed": 7, "rank": 0, "world": 1}
    with loader(folder / "train", **options) as batches:
        list(batches)
        rows = iter(batches)
        next(rows)
        state = batches.state_dict()
        want = [batch["id"].tolist() for batch in rows]
    made = Batches(folder / "train", **options)
    prepared = accelerate.Accelerator(cpu=True).prepare(DataLoader(made, batch_size=None))
    made.load_state_dict(state)
    with pytest.raises(PlanError, match=r"state of pass 1 was loaded, and set_epoch\(0\) would discard it"):
        next(iter(prepared))
    prepared.set_epoch(1)
    assert [batch["id"].tolist() for batch in prepared] == want


def with_workers(code: str) -> str:
    """Return a recipe that takes its batches from worker processes."""
    code = changed(code, "import loader", "import Batches\nfrom torch.utils.data import DataLoader")
    options = '"train", batch_size=64, shuffle=True, seed=7, remainder="pad"'
    return changed(code, f"loader({options})", f"DataLoader(Batches({options}), batch_size=None, num_workers=2)")


@pytest.mark.parametrize("form", ["loader", "workers"])
def test_the_trainer_of_transformers_gives_every_row_to_one_rank(folder, form):
    pytest.importorskip("transformers")
    code = recipe("Trainer of Transformers")
    if form == "workers":
        code = with_workers(code)
    for code_ended, said in run_ranks(folder, NOTES + MODEL + code):
        assert code_ended == 0, said
    assert_every_row_once(folder, passes=2)


DIRECT = """
from penstock.torch import Batches
from transformers import Trainer, TrainingArguments
arguments = TrainingArguments("checkpoints", report_to=[], save_strategy="no", use_cpu=True)
Trainer(model, arguments, train_dataset=Batches("train", batch_size=64)).train()
"""


def test_the_trainer_of_transformers_is_refused_batches_as_its_dataset(folder):
    pytest.importorskip("transformers")
    for code_ended, said in run_ranks(folder, NOTES + MODEL + DIRECT):
        assert code_ended == 1
        assert "PlanError: Batches gives this process its part already" in said
        assert "get_train_dataloader()" in said


@pytest.mark.parametrize("form", ["loader", "workers"])
def test_lightning_gives_every_row_to_one_rank(folder, form):
    pytest.importorskip("lightning.pytorch")
    code = recipe("Lightning")
    if form == "workers":
        code = with_workers(code)
    [(code_ended, said)] = outputs([start(folder, NOTES + MODULE + code)])
    assert code_ended == 0, said
    assert_every_row_once(folder)


BEFORE = """
from penstock.torch import loader
trainer = pl.Trainer(
    max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False
)
trainer.fit(module, loader("train", batch_size=64))
"""


def test_lightning_is_refused_a_loader_that_was_made_before_its_ranks(folder):
    pytest.importorskip("lightning.pytorch")
    [(code_ended, said)] = outputs([start(folder, NOTES + MODULE + BEFORE)])
    assert code_ended == 1
    assert (
        "PlanError: the loader was made for rank 0 of 1, but according to torch.distributed this process is now rank"
        in said
    )
    assert "in train_dataloader()" in said


def test_ray_train_gives_every_row_to_one_rank(folder):
    pytest.importorskip("ray.train.torch")
    code = changed(recipe("Ray Train"), "    for batch in batches:\n", "    for batch in [*batches, *unprepared()]:\n")
    # With workers and prepared, as on the page, and the loader itself: starting Ray is what takes long.
    loader_itself = """
def unprepared():
    from penstock.torch import loader
    return loader(path, batch_size=64, remainder="pad", device=ray.train.torch.get_device())
"""
    [(code_ended, said)] = outputs([start(folder, NOTES + RAY + loader_itself + code)])
    assert code_ended == 0, said
    noted = []
    for rank in range(2):
        lines = (folder / f"rows-{rank}.jsonl").read_text().splitlines()
        noted.append([row for line in lines for row in json.loads(line)])
    assert Counter(chain(*noted)) == dict.fromkeys(range(NUM_ROWS), 2)
    assert abs(len(noted[0]) - len(noted[1])) <= 2


@pytest.fixture
def become_rank_1(monkeypatch):
    def become():
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")

    return become


def test_a_loader_is_not_iterated_as_another_rank(folder, become_rank_1):
    with penstock.open(folder / "train").loader(batch_size=64) as found:
        assert len(list(found)) == len(found)
        become_rank_1()
        with pytest.raises(PlanError, match=r"made for rank 0 of 1, but according to the environment .* rank 1 of 2"):
            iter(found)
    with penstock.open(folder / "train").loader(batch_size=64, rank=0, world=1) as given:
        assert sum(len(batch["id"]) for batch in given) == NUM_ROWS


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize(
    "workers", [{}, *({"num_workers": 2, "multiprocessing_context": m} for m in ("fork", "spawn"))]
)
def test_batches_are_not_iterated_as_another_rank(folder, become_rank_1, workers):
    made = DataLoader(Batches(folder / "train", batch_size=64), batch_size=None, **workers)
    given = DataLoader(Batches(folder / "train", batch_size=64, rank=0, world=1), batch_size=None, **workers)
    become_rank_1()
    with pytest.raises(PlanError, match=r"made for rank 0 of 1, but according to the environment .* rank 1 of 2"):
        next(iter(made))
    assert sum(len(batch["id"]) for batch in given) == NUM_ROWS
