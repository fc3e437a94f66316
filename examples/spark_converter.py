"""Train a small PyTorch network on a Spark DataFrame: features made by Spark, batches by the converter.

The digits are scikit-learn's; nothing is fetched. Spark scales the pixels, the converter writes the DataFrame once,
and every epoch is trained from it in an order of its own. Needs pyspark and Java; takes less than a minute on a CPU.

    python examples/spark_converter.py [--output FOLDER]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from pyspark.sql import SparkSession, functions
from sklearn.datasets import load_digits

from penstock.petastorm.spark import SparkDatasetConverter, make_spark_converter

BATCH, SEED, EPOCHS = 32, 7, 6
TRAIN_ROWS = 1500


def digits(spark: Any) -> Any:
    """Return the digits as a DataFrame: `id`, `label` and `features`, an array of 64 numbers from 0 to 1."""
    data = load_digits()
    rows = [(row, int(label), data.data[row].tolist()) for row, label in enumerate(data.target)]
    df = spark.createDataFrame(rows, "id long, label long, pixels array<double>")
    return df.select("id", "label", functions.transform("pixels", lambda pixel: pixel / 16.0).alias("features"))


def train(converter: SparkDatasetConverter) -> torch.nn.Module:
    """Return a network trained on a converter's rows."""
    torch.manual_seed(SEED)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with converter.make_torch_dataloader(BATCH, num_epochs=1, shuffling_queue_capacity=TRAIN_ROWS, seed=SEED) as loader:
        for epoch in range(EPOCHS):  # every loop is a pass, in an order of its own
            total, steps = 0.0, len(loader)
            for batch in loader:
                loss = torch.nn.functional.cross_entropy(model(batch["features"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            print(f"epoch {epoch}: {steps} steps, mean loss {total / steps:.3f}")
    return model


def accuracy(model: torch.nn.Module, converter: SparkDatasetConverter) -> float:
    """Return the share of a converter's rows that are told right."""
    right = 0
    with converter.make_torch_dataloader(BATCH, num_epochs=1) as loader, torch.no_grad():
        for batch in loader:
            right += int((model(batch["features"]).argmax(dim=1) == batch["label"]).sum())
    return right / len(converter)


def main(arguments: list[str] | None = None) -> float:
    """Train, print, and return the accuracy on rows that were not trained on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", help="folder for the files; default: a temporary one")
    asked = parser.parse_args(arguments)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(asked.output or folder).resolve()
        spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, output.as_uri())
        df = digits(spark)
        learn = make_spark_converter(df.filter(df.id < TRAIN_ROWS))
        check = make_spark_converter(df.filter(df.id >= TRAIN_ROWS))
        print(f"{len(learn)} rows to learn from, {len(check)} to check with")
        found = accuracy(train(learn), check)
        print(f"accuracy {found:.1%}")
        learn.delete()
        check.delete()
    return found


if __name__ == "__main__":
    main()
