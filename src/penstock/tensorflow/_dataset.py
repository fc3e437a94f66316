"""A `tf.data.Dataset` over a stream of batches, that knows what its consumer has received, and how long it is.

`make_dataset` builds the pipeline: a generator of arrays, tensors made of them, and the number of batches declared.
Nothing in it runs ahead of the consumer (the engine does that), so that a batch is received when it is asked for. Where
the user adds stages that run ahead, `prefetch` or a parallel `map`, one more stage behind them counts what comes out.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from penstock.engine.base_loader import LoaderProxy
from penstock.errors import LoaderClosed, PenstockWarning, TransformError
from penstock.tensorflow._exit import exiting, watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penstock.engine.delivery import Delivery, Stream
    from penstock.tensorflow._forms import Form

    Arrays = tuple[Any, ...]

_MOST_AHEAD = 1024
"""Batches that may wait in stages that run ahead when the first one comes out."""


def make_batches(native: Any, forms: Sequence[Form], rows: int | None) -> Batches:
    """Return the dataset of a loader's batches; `rows`: of every batch, where all have the same number."""
    specs = [form.specs(rows) for form in forms]
    counts = [len(one) for one in specs]
    names = {form.name for form in forms}

    def convert(delivery: Delivery[Any]) -> Arrays:
        batch = delivery.batch
        if batch.keys() != names:
            expected = [form.name for form in forms]  # other columns would be left out silently
            lacks, more = sorted(set(expected) - batch.keys()), sorted(batch.keys() - set(expected))
            wrong = f"without the column {lacks[0]!r}, only" if lacks else f"with the column {more[0]!r}, among"
            raise TransformError(
                f"a batch came {wrong} {', '.join(map(repr, batch))}, where the element spec has "
                f"{', '.join(map(repr, expected))}; a transform must give the same columns for every batch, those of "
                "element_spec= where that is given"
            )
        return tuple(array for form in forms for array in form.arrays(batch[form.name]))

    def assemble(*tensors: Any) -> dict[str, Any]:
        batch: dict[str, Any] = {}
        left = list(tensors)
        for form, count in zip(forms, counts, strict=True):
            batch |= form.assemble(left[:count])
            del left[:count]
        return batch

    signature = tuple(spec for one in specs for spec in one)
    return make_dataset(Loader(native, convert), signature, assemble)


def make_dataset(
    loader: Loader, signature: tuple[Any, ...], assemble: Callable[..., Any], kind: type[Batches] | None = None
) -> Batches:
    """Return the dataset of a loader whose batches are arrays of these specs, assembled into elements.

    `kind` is the class of the dataset: `Batches`, or `TF1Batches`.
    """
    made = tf.data.Dataset.from_generator(loader.begin, output_signature=signature).map(as_it_is(assemble))
    # A resumed pass is shorter than others, and tf.data refuses a dataset that ends before its declared length. One
    # that is repeated without end and cut counts as that long, and ends where a repetition is empty: `Loader.begin`.
    if loader.repeats:
        made = made.repeat()
    if loader.full_length is not None:
        made = made.take(loader.full_length)
    return (kind or Batches)(made.with_options(no_running_ahead()), loader, counted=False)


def as_it_is(function: Callable[..., Any]) -> Any:
    """Return a function that TensorFlow calls as it is: to convert its source takes longer than all the rest."""
    return tf.autograph.experimental.do_not_convert(function)


_AHEAD = ("inject_prefetch", "map_parallelization", "seq_interleave_prefetch")
"""Options by which tf.data adds stages that run ahead; old versions lack some of them."""


def no_running_ahead() -> Any:
    """Return options under which no stage runs ahead of the consumer that the user has not asked to."""
    options = tf.data.Options()
    rewrites = options.experimental_optimization
    rewrites.map_parallelization = False
    if hasattr(rewrites, "inject_prefetch"):
        rewrites.inject_prefetch = False
    if hasattr(rewrites, "seq_interleave_prefetch"):
        rewrites.seq_interleave_prefetch = False
    # Its thread has nothing to tune here, and an iterator that ends waits until it wakes: seconds after a long pass.
    options.autotune.enabled = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF  # ranks do that
    return options


class Loader(LoaderProxy):
    """The loader behind a dataset: `dataset.penstock`.

    `native` is the loader of NumPy batches, or the mix, that does the work; it holds the state of what the consumer has
    received. Safe to ask from any thread, also from a Keras callback. One iteration at a time: another one ends the one
    before it, which raises LoaderClosed if it is asked for more.
    """

    def __init__(self, native: Any, convert: Callable[[Delivery[Any]], Arrays], *, repeats: bool = True) -> None:
        self.native = native
        self.repeats = repeats
        """Whether the dataset is repeated: not where its length is unknown, so that nothing can end it."""
        self._convert = convert
        self.full_length = _length(native)
        """Batches of a whole pass; None: endless, or not known."""
        self._lock = threading.RLock()
        self._ended_early = False
        """Whether a pass has just ended that was shorter than declared: what starts next is its empty repetition."""
        self._will_count: bool | None = None
        """Of the iteration that begins next: whether a stage counts what comes out; None: not known."""
        self._has_counting = False
        """Whether any dataset of this loader has such a stage."""
        self._resumed = False
        """Whether the next pass goes on from a state."""
        self._last: tuple[bool, int, int | None] = (False, 0, None)
        """Of the current pass: whether it went on from a state, batches made, and batches in all."""
        self._counting: Callable[[], _Counting | None] = lambda: None
        """Weak: tf.data alone holds the iterator, whose threads end with it."""

    def will_iterate(self, *, counted: bool) -> None:
        """Note that an iterator is made, of a dataset that has a counting stage or not."""
        with self._lock:
            self.native.check_open()
            self._ended_early, self._will_count = False, counted

    def will_run_ahead(self) -> None:
        """Note that a dataset was made with stages that run ahead of the consumer."""
        self._has_counting = True

    def begin(self) -> Iterator[Arrays]:
        """Begin a pass; called by tf.data for every iterator, and once more after a pass that ended early."""
        with self._lock:
            if (self.repeats and self._ended_early) or exiting():
                self._ended_early = False
                return iter(())
            # A resumed pass was begun and left: Keras does that unasked, under a strategy.
            from_state, num_made, length = self._last
            if from_state and not self._resumed and length and 0 < num_made < length:
                warnings.warn(
                    f"a pass that went on from a state was left after {num_made} of the {length} batches it had; this "
                    "iteration is the next pass, and the rest does not come. Under a strategy, Keras takes one batch "
                    "before training: load the state in a callback's on_train_begin (docs/tensorflow.md)",
                    PenstockWarning,
                    stacklevel=1,
                )
            stream = self.native.stream().map(self._convert)
            is_plain = self._will_count is None and not self._has_counting
            counted = False if is_plain else self._will_count
            counting = _Counting(stream, counted, self.native.pass_number + 1)
            self._counting = weakref.ref(counting)
            self._last = (self._resumed, 0, stream.length)
            self._will_count, self._resumed = None, False
            watch()
            return _Arrays(self, stream, counting)

    def made(self, count: int) -> None:
        """Note how many batches of the current pass were made."""
        self._last = (self._last[0], count, self._last[2])

    def ended(self, count: int) -> None:
        """Note that a pass has ended after so many batches."""
        self._ended_early = self.full_length is None or count < self.full_length

    def hold(self, counting: _Counting) -> None:
        """Keep what counts a pass whose threads have ended: tf.data drops its iterator before the last batch is out."""
        with self._lock:
            if self._counting() is counting:
                self._counting = lambda: counting

    def came_out(self) -> np.int64:
        """Note that a batch has come out of the stages that run ahead."""
        counting = self._counting()
        if counting is not None:
            counting.came_out()
        return np.int64(0)

    @property
    def pass_number(self) -> int:
        """The pass, counted from 0, that the next batch belongs to; moves on with the last batch of a pass.

        Also where other ranks have batches left: tf.data does not ask for more than the declared length.
        """
        counting = self._counting()
        return self.native.pass_number if counting is None or not counting.all_out else counting.next_pass

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state with the next iteration: of any world, batch size or framework, of the same data."""
        with self._lock:
            self.native.load_state_dict(state)
            self._counting = lambda: None
            self._ended_early, self._resumed = False, True

    def __repr__(self) -> str:
        return f"penstock.tensorflow.{self.native!r}"


def _length(native: Any) -> int | None:
    try:
        return len(native)
    except TypeError:
        return None


class _Counting:
    """Acknowledges batches of one pass as they come out of the last stage, or as they are made where that is the same.

    An iterator that `Batches.__iter__` did not make is known to be counted by its first batch that comes out; until
    then what was made is acknowledged only when somebody asks for the place.
    """

    def __init__(self, stream: Stream[Arrays], counted: bool | None, next_pass: int) -> None:
        self._stream = stream
        self.next_pass = next_pass
        """The number of the pass after this one."""
        self._counted = counted
        self._lock = threading.RLock()
        self._made: deque[tuple[Any, float]] = deque()
        """Place, and how long was waited for it, of batches that are not acknowledged."""
        self._num_out = 0
        """Batches that are acknowledged."""
        self._is_through = False
        if counted is None:
            stream.before_state(self.settle)

    @property
    def all_out(self) -> bool:
        """Whether the consumer has received the last batch of the pass."""
        return self._num_out == self._stream.length

    def add(self, place: Any, waited_s: float) -> None:
        """Note a batch that was made."""
        with self._lock:
            self._made.append((place, waited_s))
            if self._counted is False or len(self._made) > _MOST_AHEAD:
                self._acknowledge()

    def came_out(self) -> None:
        with self._lock:
            self._counted = True
            if self._made:
                self._acknowledge()

    def end(self) -> None:
        """Note that all batches of the pass were made."""
        with self._lock:
            self._is_through = True
            if not self._made and not self._stream.is_over:
                with contextlib.suppress(LoaderClosed):
                    self._stream.received(self._stream.end)

    def settle(self) -> None:
        """Acknowledge what was made, as long as no stage is known that runs ahead."""
        with self._lock:
            while self._counted is None and self._made:
                self._acknowledge()

    def _acknowledge(self) -> None:
        with contextlib.suppress(LoaderClosed):  # superseded: what comes out late belongs to no pass
            self._stream.received(*self._made.popleft())
            self._num_out += 1
            if self._is_through and not self._made:
                self._stream.received(self._stream.end)


class _Arrays:
    """The iterator of one pass, held by tf.data alone: its threads end when tf.data drops it."""

    def __init__(self, loader: Loader, stream: Stream[Arrays], counting: _Counting) -> None:
        self._loader = loader
        self._stream = stream
        self._counting = counting
        self._num = 0
        self._over = self._failed = False

    def __iter__(self) -> _Arrays:
        return self

    def __next__(self) -> Arrays:
        if self._over:  # behind the last batch, or after an error, which no repetition is to follow
            if not self._failed:
                self._counting.end()
            self._loader.ended(self._num)
            raise StopIteration
        began = time.perf_counter()
        try:
            delivery = self._stream.take()
            if delivery is not None:
                self._num += 1
                self._loader.made(self._num)
                self._counting.add(delivery.place, time.perf_counter() - began)
                if self._num == self._stream.length:  # tf.data may not ask for more
                    self._end()
                return delivery.batch
            self._end()
            self._counting.end()
            self._loader.ended(self._num)
        except BaseException:
            self._over = self._failed = True
            self._stream.stop()
            if exiting():  # nothing will read it any more
                raise StopIteration from None
            raise
        raise StopIteration

    def _end(self) -> None:
        self._over = True
        self._stream.take()  # None: gives back the threads
        self._loader.hold(self._counting)


class Batches(LoaderProxy, tf.data.Dataset):  # type: ignore[misc]
    """A `tf.data.Dataset` of batches that can also be saved, resumed and closed; made by `penstock.tensorflow.loader`.

    `state_dict()` tells what has come out of this dataset, whatever waits in stages inside. `map`, `prefetch`,
    `with_options` and `enumerate` give such a dataset again; behind others (`batch`, `shuffle`, `take`, ...) the state
    is that of what has gone into them. Use the state of the last `Batches` of a pipeline.
    """

    def __init__(self, inner: Any, loader: Loader, *, counted: bool) -> None:
        self._inner = inner
        self._is_counted = counted
        if counted:
            loader.will_run_ahead()
        self._outer = _counting(inner, loader) if counted else inner
        self.penstock = loader
        """The loader behind."""
        self.native = loader.native
        tf.data.Dataset.__init__(self, self._outer._variant_tensor)  # not super(): that of TF1 takes no argument

    def _inputs(self) -> list[Any]:
        return [self._outer]

    @property
    def element_spec(self) -> Any:
        """What a batch consists of: dtypes and shapes by column."""
        return self._outer.element_spec

    def _with(self, inner: Any, *, ahead: bool) -> Batches:
        return type(self)(inner, self.penstock, counted=self._is_counted or ahead)

    # -- as tf.data has it ------------------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        self.penstock.will_iterate(counted=self._is_counted)
        return tf.data.Dataset.__iter__(self)

    def __len__(self) -> int:
        """Return the batches that the next iteration gives, exact: after `load_state_dict` those that are left.

        `cardinality()` counts a whole pass, also then: Keras takes it as the length of all later epochs.
        """
        length = _length(self.native)
        if length is None:
            raise TypeError("the dataset is infinite: epochs is None")
        return length

    def __bool__(self) -> bool:
        return True  # as every dataset of tf.data

    def map(self, map_func: Callable[..., Any], num_parallel_calls: Any = None, *args: Any, **keywords: Any) -> Batches:
        """Return the dataset with a function of tensors applied to every batch; see `tf.data.Dataset.map`."""
        made = self._inner.map(map_func, num_parallel_calls, *args, **keywords)
        return self._with(made, ahead=num_parallel_calls is not None)

    def prefetch(self, buffer_size: Any, name: str | None = None) -> Batches:
        """Return the dataset with batches made ahead; the engine does that already. See `tf.data.Dataset.prefetch`."""
        return self._with(self._inner.prefetch(buffer_size, name=name), ahead=True)

    def enumerate(self, start: int = 0, name: str | None = None) -> Batches:
        """Return the dataset of pairs of a number and a batch; see `tf.data.Dataset.enumerate`."""
        return self._with(self._inner.enumerate(start, name=name), ahead=False)

    def with_options(self, options: Any, name: str | None = None) -> Batches:
        """Return the dataset with options of tf.data; see `tf.data.Dataset.with_options`."""
        ahead = any(getattr(options.experimental_optimization, one, None) for one in _AHEAD)
        return self._with(self._inner.with_options(options, name=name), ahead=ahead)

    # -- as every loader has it -------------------------------------------------------------------------------------

    @property
    def pass_number(self) -> int:
        """The pass, counted from 0, that the next batch belongs to; moves on with the last batch of a pass."""
        return self.penstock.pass_number

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state with the next iteration: of any world, batch size or framework, of the same data."""
        self.penstock.load_state_dict(state)


class TF1Batches(Batches, tf.compat.v1.data.Dataset):  # type: ignore[misc]
    """`Batches` with the members of TF1: `make_one_shot_iterator`, `make_initializable_iterator`, `output_shapes`, ...

    Transformations return datasets that have these members too, as TensorFlow's own TF1 datasets do.
    """

    def _as_variant_tensor(self) -> Any:
        return self._outer._variant_tensor

    @property
    def _dataset(self) -> Any:
        """The wrapped dataset; without this name tf.data ignores the options of a TF1 dataset."""
        return self._outer


def _counting(inner: Any, loader: Loader) -> Any:
    """Return the dataset with a stage behind it that notes every element that comes out."""
    whole = type(inner.element_spec) is tuple

    def passed(*element: Any) -> Any:
        tf.numpy_function(loader.came_out, [], tf.int64)  # stateful: never left out
        return element if whole else element[0]

    # `inner.options()` warns in graph mode, and then returns this.
    if not inner._options_attr.experimental_optimization.inject_prefetch:
        return inner.map(as_it_is(passed))
    options = tf.data.Options()  # tf.data would add it at the very end, behind the count
    options.experimental_optimization.inject_prefetch = False
    return inner.prefetch(tf.data.AUTOTUNE).map(as_it_is(passed)).with_options(options)
