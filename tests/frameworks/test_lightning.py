"""Lightning takes a loader for training and validation as it is, and goes on in the middle of an epoch."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning.pytorch")
from torch.utils.data import DataLoader  # noqa: E402

from penstock.testing import make_parquet  # noqa: E402
from penstock.torch import Batches, loader  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning has much advice
OPTIONS = {"batch_size": 6, "shuffle": True, "seed": 5}
"""51 rows: 9 batches an epoch."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_parquet(tmp_path_factory.mktemp("data") / "numbers")


class Module(lightning.LightningModule):
    """Notes the rows of every step; may fail at one."""

    def __init__(self, stop_at=None):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.train_ids, self.val_ids, self.stop_at = [], [], stop_at

    def training_step(self, batch, step):
        if self.stop_at is not None and len(self.train_ids) == self.stop_at:
            raise KeyboardInterrupt
        self.train_ids.append(batch["id"].tolist())
        return self.layer(batch["value"][:, None]).mean()

    def validation_step(self, batch, step):
        self.val_ids.append(batch["id"].tolist())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(module, train, folder, val=None, *, epochs=2, resume=None):
    saves = lightning.callbacks.ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, callbacks=[saves],
            enable_model_summary=False, num_sanity_val_steps=0,
        )  # fmt: skip
        try:
            trainer.fit(module, train, val, ckpt_path=resume)
        except (KeyboardInterrupt, SystemExit):
            assert module.stop_at is not None
    return trainer


def epochs_of(data, count=3):
    with loader(data, **OPTIONS) as batches:
        return [[batch["id"].tolist() for batch in batches] for _ in range(count)]


def test_it_trains_and_validates(data, tmp_path):
    want = epochs_of(data)
    module = Module()
    with loader(data, **OPTIONS) as train, loader(data, batch_size=20) as val:
        trainer = fit(module, train, tmp_path, val)
        assert trainer.train_dataloader is train, "nothing was put in its place"
    assert module.train_ids == want[0] + want[1]
    assert [len(ids) for ids in module.val_ids] == [20, 20, 11] * 2


@pytest.mark.parametrize("step", [1, 4, 8, 12])
def test_it_resumes_in_the_middle_of_an_epoch(data, tmp_path, step):
    want = epochs_of(data)
    want = want[0] + want[1]
    with loader(data, **OPTIONS) as train:
        fit(Module(stop_at=step), train, tmp_path)
    module = Module()
    with loader(data, **OPTIONS) as train:
        fit(module, train, tmp_path, resume=tmp_path / f"step={step}.ckpt")
    assert module.train_ids == want[step:]


def test_a_data_loader_with_workers_trains_too(data, tmp_path):
    want = epochs_of(data)
    module = Module()
    fit(module, DataLoader(Batches(data, **OPTIONS), batch_size=None, num_workers=2), tmp_path)
    assert module.train_ids == want[0] + want[1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_data_loader_resumes(data, tmp_path, num_workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make():
        return stateful.StatefulDataLoader(Batches(data, **OPTIONS), batch_size=None, num_workers=num_workers)

    want = epochs_of(data)
    fit(Module(stop_at=4), make(), tmp_path)
    module = Module()
    fit(module, make(), tmp_path, resume=tmp_path / "step=4.ckpt")
    assert module.train_ids == (want[0] + want[1])[4:]
