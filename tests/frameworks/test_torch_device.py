"""The way to a device: one buffer for a batch, and on a GPU streams, events and memory that is used again in time.

What needs a GPU is collected only where there is one.
"""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
from penstock.testing import make_parquet, mixed  # noqa: E402
from penstock.torch import loader  # noqa: E402
from penstock.torch.device import BufferLayout, copies, map_tensors  # noqa: E402


def test_small_columns_lie_together_and_large_ones_behind_them():
    layout = BufferLayout([100, 70_000, 8, 0])
    assert layout.offsets == [0, 768, 256, 512]
    assert (layout.small_bytes, layout.num_bytes) == (768, 768 + 70_144)


def test_a_batch_goes_through_one_buffer_unchanged():
    host = [
        torch.arange(5, dtype=torch.int16),
        torch.rand(3, 200, 200).transpose(1, 2),
        torch.tensor([True, False]),
        torch.empty(0, 4),
        torch.tensor(3.5, dtype=torch.float64),
        torch.arange(9)[::2],
    ]
    layout = BufferLayout([tensor.numel() * tensor.element_size() for tensor in host])
    buffer = torch.zeros(layout.num_bytes, dtype=torch.uint8)
    there = copies(host, layout, buffer, torch.device("cpu"))
    buffer.fill_(255)  # the next batch
    for one, tensor in zip(there, host, strict=True):
        assert one.dtype == tensor.dtype
        assert torch.equal(one, tensor)
    memory = [one.untyped_storage().data_ptr() for one in there]
    assert memory[0] == memory[2] == memory[5], "small ones are copied together"
    assert memory[1] != memory[0], "keeping a label must not keep the images"


def test_tensors_are_found_wherever_they_are():
    nested = {"a": torch.ones(1), "b": [torch.ones(2), None, "x"], "c": [[("k", torch.ones(3))], {"d": torch.ones(4)}]}
    seen: list[int] = []
    out = map_tensors(nested, lambda tensor: seen.append(len(tensor)) or len(tensor))
    assert seen == [1, 2, 3, 4]
    assert out == {"a": 1, "b": [2, None, "x"], "c": [[("k", 3)], {"d": 4}]}


if torch.cuda.is_available():

    @pytest.fixture(scope="module")
    def images(tmp_path_factory):
        """512 images of 64 KiB, all pixels of an image its number."""
        folder = tmp_path_factory.mktemp("images") / "data"
        ids = np.arange(512)
        pixels = np.broadcast_to(ids.astype(np.float32)[:, None, None], (512, 128, 128)).copy()
        penstock.write({"id": ids, "image": pixels}, folder)
        return folder

    @pytest.mark.gpu
    @pytest.mark.parametrize("pin", [None, False])
    @pytest.mark.parametrize("prefetch", [1, 3])
    def test_batches_arrive_whole_however_slow_the_gpu_is(images, pin, prefetch):
        options = {"batch_size": 32, "shuffle": True, "device": "cuda", "pin_memory": pin, "prefetch": prefetch}
        kept = []
        with loader(images, **options, epochs=3) as batches:
            for batch in batches:
                torch.cuda._sleep(5_000_000)  # the GPU is behind: memory that is reused too early would show
                kept.append((batch["id"], batch["image"].double().mean((1, 2)), batch["image"]))
        torch.cuda.synchronize()
        for ids, means, image in kept:
            assert ids.is_cuda
            assert torch.equal(ids.double(), means)
            assert torch.equal(image[:, 5, 7].long(), ids)
        assert sorted(torch.cat([ids for ids, _, _ in kept]).tolist()) == sorted([*range(512)] * 3)

    @pytest.mark.gpu
    def test_memory_that_the_consumer_let_go_is_not_overwritten_while_it_computes(images):
        results = []
        with loader(images, batch_size=32, device="cuda", epochs=4) as batches:
            for batch in batches:
                torch.cuda._sleep(20_000_000)
                results.append((batch["id"] * 1, batch["image"].double().sum((1, 2))))
                del batch  # its memory is free for the feed, but only once the sum is done
        torch.cuda.synchronize()
        assert all(torch.equal(ids.double() * 128 * 128, sums) for ids, sums in results)

    @pytest.mark.gpu
    def test_a_consumer_on_a_stream_of_its_own(images):
        stream = torch.cuda.Stream()
        with loader(images, batch_size=64, device="cuda") as batches, torch.cuda.stream(stream):
            for batch in batches:
                torch.cuda._sleep(5_000_000)
                assert torch.equal(batch["image"].double().mean((1, 2)), batch["id"].double())

    @pytest.mark.gpu
    def test_device_transforms_run_on_the_device_and_repeat_after_resuming(images):
        def augment(batch, generator, positions):
            assert positions.is_cuda
            noise = torch.rand(batch["image"].shape, device="cuda", generator=generator)
            return {"id": batch["id"], "noisy": batch["image"] + noise, "position": positions}

        options = {"batch_size": 48, "shuffle": True, "device": "cuda", "device_transform": augment}
        with loader(images, **options) as batches:
            want = list(batches)
        with loader(images, **options) as batches:
            list(itertools.islice(batches, 4))
            state = batches.state_dict()
        with loader(images, **options) as batches:
            batches.load_state_dict(state)
            got = list(batches)
        for again, before in zip(got, want[4:], strict=True):
            assert all(torch.equal(again[name], before[name]) for name in before)

    @pytest.mark.gpu
    def test_every_kind_of_column_arrives(tmp_path):
        data = make_parquet(tmp_path / "data", columns=mixed)
        with loader(data, batch_size=51) as here, loader(data, batch_size=51, device="cuda:0") as there:
            [want], [got] = here, there
        assert list(got) == list(want)
        for name, values in want.items():
            if isinstance(values, torch.Tensor):
                assert got[name].is_cuda
                assert torch.equal(got[name].cpu(), values) or torch.isnan(values.double()).any()
            elif name != "ragged":
                assert got[name] == values
        same = all(
            a is b if b is None else torch.equal(a.cpu(), b) for a, b in zip(got["ragged"], want["ragged"], strict=True)
        )
        assert same

    @pytest.mark.gpu
    def test_break_and_close_leave_no_thread_and_no_hang(images):
        began = time.monotonic()
        for _ in range(5):
            with loader(images, batch_size=16, device="cuda") as batches:
                for _ in batches:
                    break
                next(iter(batches))
        assert time.monotonic() - began < 30

    @pytest.mark.gpu
    def test_pinned_memory_without_a_device(images):
        with loader(images, batch_size=16, pin_memory=True) as batches:
            batch = next(iter(batches))
        assert batch["image"].is_pinned()
        assert not batch["image"].is_cuda
