"""JPEGs decoded on the GPU: the same shapes, nearly the same pixels, the same order; on a CPU a warning and the CPU."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
from penstock.codecs import CompressedImageCodec, ScalarCodec  # noqa: E402
from penstock.errors import PenstockWarning, PlanError  # noqa: E402
from penstock.torch import loader  # noqa: E402

SCHEMA = penstock.Unischema(
    "Pictures",
    [
        penstock.UnischemaField("id", np.int64, (), ScalarCodec(), False),
        penstock.UnischemaField("image", np.uint8, (48, 64, 3), CompressedImageCodec("jpeg", 90), False),
        penstock.UnischemaField("grey", np.uint8, (32, 32), CompressedImageCodec("jpeg", 90), False),
    ],
)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    rows, columns = np.mgrid[0:48, 0:64]

    def row(i):
        image = np.stack([rows * 4 + i, columns * 3, rows + columns + i], 2).astype(np.uint8)  # smooth, no wrap
        return {"id": i, "image": image, "grey": (rows[:32, :32] * 6 + i).astype(np.uint8)}

    folder = tmp_path_factory.mktemp("pictures") / "data"
    penstock.write([row(i) for i in range(40)], folder, schema=SCHEMA, rows_per_file=10)
    return folder


def test_without_a_gpu_the_cpu_decodes_and_says_why(pictures):
    with pytest.warns(PenstockWarning, match="decode='gpu' is not possible: .*; the CPU decodes"):
        batches = list(loader(pictures, batch_size=8, decode="gpu"))
    native = list(penstock.open(pictures).loader(batch_size=8))
    for one, two in zip(batches, native, strict=True):
        assert one["image"].numpy().tolist() == two["image"].tolist()


def test_a_dataset_without_jpegs_is_told_so(tmp_path):
    penstock.write({"x": np.arange(3)}, tmp_path / "data")
    with pytest.warns(PenstockWarning, match="no column holds JPEGs"):
        loader(tmp_path / "data", batch_size=1, decode="gpu").close()


def test_another_word_is_refused(pictures):
    with pytest.raises(PlanError, match="decode must be 'cpu' or 'gpu'; got 'tpu'"):
        loader(pictures, batch_size=1, decode="tpu")


def test_undecoded_columns_are_bytes_and_the_schema_stays(pictures):
    ds = penstock.open(pictures).without_decoding(["image"])
    batch = next(iter(ds.loader(batch_size=4)))
    assert all(cell.tobytes().startswith(b"\xff\xd8") and cell.flags.writeable for cell in batch["image"])
    assert batch["grey"].shape == (4, 32, 32)
    assert ds.schema.fields["image"].shape == (48, 64, 3)


@needs_cuda
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_gpu_decodes_the_same_pictures_in_the_same_order(pictures, shuffle):
    how = {"batch_size": 8, "shuffle": shuffle, "seed": 3, "epochs": 2}
    on_gpu = list(loader(pictures, device="cuda", decode="gpu", **how))
    on_cpu = list(penstock.open(pictures).loader(**how))
    assert len(on_gpu) == len(on_cpu)
    for one, two in zip(on_gpu, on_cpu, strict=True):
        assert one["id"].tolist() == two["id"].tolist()
        for name in ("image", "grey"):
            assert one[name].dtype == torch.uint8
            assert one[name].shape == two[name].shape
            difference = np.abs(one[name].cpu().numpy().astype(int) - two[name].astype(int))
            assert difference.mean() < 1.5
            assert difference.max() <= 24  # at edges of colour, where chroma is upsampled differently


@needs_cuda
def test_a_device_transform_sees_pixels_and_repeats_after_resuming(pictures):
    def noise(batch, generator):
        shift = torch.randint(0, 9, (1,), generator=generator, device=batch["image"].device)
        return {"id": batch["id"], "mean": batch["image"].float().mean((1, 2, 3)) + shift}

    how = {"batch_size": 8, "shuffle": True, "seed": 3, "device": "cuda", "decode": "gpu", "device_transform": noise}
    whole = loader(pictures, **how)
    first = []
    for batch in whole:
        first.append(batch["mean"].tolist())
        if len(first) == 2:
            state = whole.state_dict()
    resumed = loader(pictures, **how)
    resumed.load_state_dict(state)
    assert [batch["mean"].tolist() for batch in resumed] == first[2:]
