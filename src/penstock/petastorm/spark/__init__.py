"""Petastorm's `spark`: DataFrames of Spark to loaders of TensorFlow and torch.

Mirrors the names of its module `spark_dataset_converter`. Does not import pyspark.
"""

from penstock.petastorm.spark.spark_dataset_converter import SparkDatasetConverter, make_spark_converter

__all__ = ["SparkDatasetConverter", "make_spark_converter"]
