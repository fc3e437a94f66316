"""Petastorm's `tf_utils`: not in this version; the names can be imported and say so when used.

They will turn a reader into a `tf.data.Dataset` or into tensors of a graph. Does not import TensorFlow.
"""

from __future__ import annotations

from functools import partial

from penstock.petastorm._later import later_function

__all__ = [
    "RANDOM_SHUFFLING_QUEUE_SIZE",
    "date_to_nsec_from_epoch",
    "make_namedtuple_tf_ngram",
    "make_petastorm_dataset",
    "tf_tensors",
]

RANDOM_SHUFFLING_QUEUE_SIZE = "random_shuffling_queue_size"
"""Name of the operation that tells the size of the shuffling queue in a graph."""

_INSTEAD = "until then tf.data.Dataset.from_generator takes the batches of penstock.open(url).loader(batch_size=...)"
_function = partial(later_function, __name__, extra="tensorflow", instead=_INSTEAD)

date_to_nsec_from_epoch = _function("date_to_nsec_from_epoch")
make_namedtuple_tf_ngram = _function("make_namedtuple_tf_ngram")
make_petastorm_dataset = _function("make_petastorm_dataset")
tf_tensors = _function("tf_tensors")
