"""Penstock on a GPU: images per second to the device, against torchvision's batched nvJPEG and the CPU decoder alone.

Needs CUDA and torchvision. Measures, in one process and on the same bytes: nvJPEG alone on batches that lie in memory;
Parquet to uint8 CUDA tensors decoded on the GPU; the same decoded on the CPU with all cores, and the CPU's decoder
alone with as many threads; and a ResNet-50 training step in bfloat16 fed by Penstock, with crop and flip on the device:
the share of its time that it waits for data. docs/gpu.md has the figures.

Usage: `python bench/gpu.py FOLDER [--batch-size 256]`; makes the dataset below FOLDER where it is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision.io import ImageReadMode, decode_jpeg

import penstock
from penstock.torch import loader

SIDE = 256


def nvjpeg_alone(cells: list[bytes], batch_size: int, seconds: float) -> float:
    """Images per second of torchvision's decoder on bytes in memory."""
    encoded = [torch.from_numpy(np.frombuffer(cell, np.uint8).copy()) for cell in cells]
    batches = [encoded[i : i + batch_size] for i in range(0, len(encoded) - batch_size + 1, batch_size)]
    return _rate(lambda batch: decode_jpeg(batch, mode=ImageReadMode.RGB, device="cuda"), batches, batch_size, seconds)


def _rate(work: Any, batches: list[Any], batch_size: int, seconds: float) -> float:
    for batch in batches[:3]:
        work(batch)
    torch.cuda.synchronize()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for batch in batches:
            work(batch)
            count += batch_size
    torch.cuda.synchronize()
    return count / (time.perf_counter() - began)


def cpu_alone(dataset: penstock.Dataset, cells: list[bytes], threads: int, seconds: float) -> float:
    """Images per second of the codec on bytes in memory, with that many threads, into memory that is there."""
    field = dataset.schema.fields["image"]
    out = np.empty((threads, *field.shape), np.uint8)

    def work(number: int) -> int:
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            for cell in cells[number::threads]:
                out[number] = field.codec.decode(field, cell)
                done += 1
        return done

    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        count = sum(pool.map(work, range(threads)))
        return count / (time.perf_counter() - began)


def through_penstock(dataset: penstock.Dataset, batch_size: int, decode: str, seconds: float) -> float:
    """Images per second from Parquet to CUDA tensors."""
    with loader(
        dataset, batch_size=batch_size, shuffle=True, seed=1, epochs=None, device="cuda", decode=decode, drop_last=True
    ) as batches:
        source = iter(batches)
        for _ in range(8):
            next(source)
        torch.cuda.synchronize()
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            batch = next(source)
            assert batch["image"].shape[1:] == (SIDE, SIDE, 3)
            count += len(batch["image"])
        torch.cuda.synchronize()
        return count / (time.perf_counter() - began)


def crop_and_flip(batch: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    """Random crops of 224, flipped at random and scaled, on the device."""
    images = batch["image"].permute(0, 3, 1, 2)
    top, left = torch.randint(0, SIDE - 224, (2,), generator=generator, device=images.device).tolist()
    images = images[:, :, top : top + 224, left : left + 224].to(torch.bfloat16) / 127.5 - 1
    flip = torch.rand(len(images), generator=generator, device=images.device) < 0.5
    images = torch.where(flip[:, None, None, None], images.flip(3), images)
    return {"image": images.contiguous(memory_format=torch.channels_last), "label": batch["label"]}


def training(dataset: penstock.Dataset, batch_size: int, decode: str, steps: int) -> dict[str, float]:
    """Train ResNet-50 for some steps; return steps per second and the share of the time spent waiting for data."""
    from torchvision.models import resnet50

    model = resnet50().cuda().to(torch.bfloat16).to(memory_format=torch.channels_last)
    model = torch.compile(model) if os.environ.get("COMPILE") else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    waited = total = 0.0
    with loader(
        dataset, batch_size=batch_size, shuffle=True, seed=1, epochs=None, device="cuda", decode=decode,
        device_transform=crop_and_flip, drop_last=True,
    ) as batches:  # fmt: skip
        source = iter(batches)
        for step in range(steps + 10):
            began = time.perf_counter()
            batch = next(source)
            got = time.perf_counter()
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"] % 1000)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            torch.cuda.synchronize()
            if step >= 10:
                waited += got - began
                total += time.perf_counter() - began
    return {"steps_per_s": steps / total, "images_per_s": steps * batch_size / total, "waiting": waited / total}


def main() -> None:
    """Measure and print one line of JSON for each figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    if not (args.folder / "p_jpeg").exists():
        import data  # needs scikit-learn, for its photographs

        data.generate(data.find("p_jpeg"), args.folder)
    dataset = penstock.open(str(args.folder / "p_jpeg"), columns=["image", "label"])
    raw = dataset.without_decoding(["image"])
    cells = [bytes(cell) for cell in raw.take(range(min(2048, len(raw))))["image"]]
    cores = os.cpu_count() or 1
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "cores": cores, "torch": torch.__version__}), flush=True)
    alone = nvjpeg_alone(cells, args.batch_size, args.seconds)
    fed = through_penstock(dataset, args.batch_size, "gpu", args.seconds)
    again = nvjpeg_alone(cells, args.batch_size, args.seconds)
    print(
        json.dumps({"nvjpeg_alone": [alone, again], "penstock_gpu": fed, "ratio": 2 * fed / (alone + again)}),
        flush=True,
    )
    by_cpu = through_penstock(dataset, args.batch_size, "cpu", args.seconds)
    limit = cpu_alone(dataset, cells, cores, args.seconds)
    print(json.dumps({"cpu_alone": limit, "penstock_cpu": by_cpu, "ratio": by_cpu / limit}), flush=True)
    for decode in ("gpu", "cpu"):
        print(json.dumps({"resnet50": decode, **training(dataset, args.batch_size, decode, args.steps)}), flush=True)


if __name__ == "__main__":
    main()
