"""Transforms that draw from torch: a generator that repeats, a warning for the global state, torchvision's recipe."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
from penstock import TransformSpec  # noqa: E402
from penstock.petastorm import make_batch_reader, make_reader  # noqa: E402
from penstock.testing import make_parquet  # noqa: E402
from penstock.torch import loader  # noqa: E402
from tests.house import ROOT  # noqa: E402
from tests.test_docs import FENCE  # noqa: E402

FIELDS = [("drawn", np.float32, (), False)]
MOVED = "draws from the global random state of torch"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_parquet(tmp_path_factory.mktemp("chance") / "data")


def draw(batch, generator):
    return {**batch, "drawn": torch.rand(len(batch["id"]), generator=generator).numpy()}


def draw_for_row(row, generator):
    return {**row, "drawn": np.float32(torch.rand((), generator=generator))}


def draw_for_frame(frame, generator):
    return frame.assign(drawn=torch.rand(len(frame), generator=generator).numpy())


def global_draw(batch):
    return {**batch, "drawn": torch.rand(len(batch["id"])).numpy()}


def drawn(batches):
    return [(batch["id"].tolist(), np.asarray(batch["drawn"]).tolist()) for batch in batches]


def test_a_generator_repeats_whatever_the_threads_do(data):
    def run(pool, workers):
        with penstock.open(data).loader(
            batch_size=4, shuffle=True, seed=3, transform=draw, pool=pool, workers=workers
        ) as batches:
            return [drawn(batches), drawn(batches)]

    first = run("thread", 3)
    assert first == run("serial", 1) == run("thread", 1)
    assert first[0] != first[1]
    assert len({value for _, values in first[0] for value in values}) == 51


def test_a_function_of_rows_gets_a_generator_of_the_row(data):
    def run(size):
        spec = TransformSpec(draw_for_row, FIELDS)
        with loader(data, batch_size=size, shuffle=True, transform=spec) as batches:
            return [pair for ids, values in drawn(batches) for pair in zip(ids, values, strict=True)]

    assert run(4) == run(9)


def test_functions_of_petastorm_get_a_generator(data):
    pytest.importorskip("pandas")

    def rows():
        with make_batch_reader(data.as_uri(), transform_spec=TransformSpec(draw_for_frame, FIELDS), seed=1) as reader:
            return [(one.id.tolist(), one.drawn.tolist()) for one in reader]

    assert rows() == rows()


def test_rows_of_petastorm_get_a_generator(tmp_path):
    schema = penstock.Unischema("S", [penstock.UnischemaField("id", np.int64, (), None, False)])
    penstock.write([{"id": i} for i in range(40)], tmp_path / "data", schema, row_group_bytes=80)

    def rows(workers):
        spec = TransformSpec(draw_for_row, FIELDS)
        url = (tmp_path / "data").as_uri()
        with make_reader(url, transform_spec=spec, seed=1, workers_count=workers) as reader:
            return [(int(one.id), float(one.drawn)) for one in reader]

    assert rows(3) == rows(1)
    assert len({value for _, value in rows(2)}) == 40


@pytest.mark.parametrize("pool", ["thread", "serial"])
def test_the_global_state_is_told_of_once(data, pool):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with loader(data, batch_size=4, transform=global_draw, pool=pool) as batches:
            drawn(batches)
            drawn(batches)
        with loader(data, batch_size=4, transform=draw, pool=pool) as batches:
            for _ in batches:
                torch.rand(1)  # as dropout does
    (message,) = [str(one.message) for one in caught if "global random state" in str(one.message)]
    assert MOVED in message
    assert "`generator` (a torch.Generator)" in message


def test_processes_seed_torch_for_every_batch(data):
    def run(workers):
        with loader(data, batch_size=8, transform=global_draw, pool="process", workers=workers) as batches:
            return drawn(batches)

    first = run(2)
    assert first == run(1)
    assert len({value for _, values in first for value in values}) == 51


STAND_IN = '''
"""The few transforms of torchvision that the page uses, drawing as it does: from the global state of torch."""
import torch


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for one in self.transforms:
            image = one(image)
        return image


class RandomCrop:
    def __init__(self, size, padding=0):
        self.size, self.padding = size, padding

    def __call__(self, image):
        image = torch.nn.functional.pad(image, [self.padding] * 4)
        top = torch.randint(0, image.shape[-2] - self.size + 1, (1,)).item()
        left = torch.randint(0, image.shape[-1] - self.size + 1, (1,)).item()
        return image[..., top : top + self.size, left : left + self.size]


class RandomHorizontalFlip:
    def __init__(self, p=0.5):
        self.p = p

    def __call__(self, image):
        return image.flip(-1) if torch.rand(1) < self.p else image
'''


def test_the_recipe_for_torchvision_repeats(tmp_path):
    page = (ROOT / "docs" / "torch.md").read_text(encoding="utf-8")
    section = page.split("\n## Random augmentation\n")[1].split("\n## ")[0]
    blocks = [match[3] for match in FENCE.finditer(section)]
    assert len(blocks) == 2
    stand_in = tmp_path / "torchvision" / "transforms" / "v2.py"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text(STAND_IN)
    first = next(match[3] for match in FENCE.finditer(page))
    main = "".join(f"    {line}\n" for line in (first + blocks[0] + CHECK).splitlines())
    (tmp_path / "page.py").write_text(f"{blocks[1]}\nif __name__ == '__main__':\n{main}", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-W", "error::penstock.errors.PenstockWarning", "page.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


CHECK = """
def images(**options):
    with loader("train", batch_size=64, shuffle=True, seed=7, **options) as batches:
        return torch.cat([batch["image"] for batch in batches])

for options in ({"transform": shift_and_flip}, {"transform": augment, "pool": "process"}):
    assert torch.equal(images(**options), images(**options, workers=1))
    assert not torch.equal(images(**options), images())
"""
