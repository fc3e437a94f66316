"""A `tf.data.Dataset` over a loader that knows what its consumer has received, and how long it is.

`make_batches` builds the pipeline: a generator of arrays, tensors made of them, and the number of batches declared.
Nothing in it runs ahead of the consumer (the engine does that), so that a batch is received when it is asked for. Where
the user adds stages that run ahead, `prefetch` or a parallel `map`, one more stage behind them counts what comes out.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import tensorflow as tf

from penstock.engine.front import Front
from penstock.errors import LoaderClosed, PenstockWarning, TransformError
from penstock.tensorflow._exit import exiting, watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penstock.engine.build import Built
    from penstock.engine.loader import Loader
    from penstock.plan import EpochPlan
    from penstock.tensorflow._forms import Form

    Place = tuple[EpochPlan, int]

_MOST_AHEAD = 1024
"""Batches that may wait in stages that run ahead when the first one comes out."""


def make_batches(loader: Loader, forms: Sequence[Form], rows: int | None) -> Batches:
    """Return the dataset of a loader's batches; `rows`: of every batch, where all have the same number."""
    delivery = Delivery(loader, tuple(forms))
    specs = [form.specs(rows) for form in forms]
    flat = tuple(spec for one in specs for spec in one)
    counts = [len(one) for one in specs]

    def assemble(*tensors: Any) -> dict[str, Any]:
        batch: dict[str, Any] = {}
        left = list(tensors)
        for form, count in zip(forms, counts, strict=True):
            batch |= form.assemble(left[:count])
            del left[:count]
        return batch

    made = tf.data.Dataset.from_generator(delivery._start, output_signature=flat).map(as_it_is(assemble))
    # A resumed pass is shorter than others, and tf.data refuses a dataset that ends before its declared length. One
    # that is repeated for ever and cut counts as that long, and ends where a repetition is empty: `Delivery._start`.
    made = made.repeat()
    if delivery._full is not None:
        made = made.take(delivery._full)
    return Batches(made.with_options(no_running_ahead()), delivery, counted=False)


def as_it_is(function: Callable[..., Any]) -> Any:
    """Return a function that TensorFlow calls as it is: to convert its source takes longer than all the rest."""
    return tf.autograph.experimental.do_not_convert(function)


_AHEAD = ("inject_prefetch", "map_parallelization", "seq_interleave_prefetch")
"""Options by which tf.data adds stages that run ahead."""


def no_running_ahead() -> Any:
    """Return options under which no stage runs ahead of the consumer that the user has not asked to."""
    options = tf.data.Options()
    for name in _AHEAD:
        if hasattr(options.experimental_optimization, name):
            setattr(options.experimental_optimization, name, False)
    # Its thread has nothing to tune here, and an iterator that ends waits until it wakes: seconds after a long pass.
    options.autotune.enabled = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF  # ranks do that
    return options


class Delivery(Front):
    """The loader behind a dataset, with the place that the consumer has reached: `dataset.penstock`.

    Safe to ask from any thread, also from a Keras callback. One iteration at a time: another one ends the one before
    it, which raises LoaderClosed if it is asked for more.
    """

    def __init__(self, loader: Loader, forms: tuple[Form, ...]) -> None:
        self._loader = self._behind = loader
        self._forms = forms
        self._names = {form.name for form in forms}
        self._full = None if loader._options.epochs is None else len(loader)
        """Batches of a whole pass."""
        self._lock = threading.RLock()
        self._current: weakref.ref[_One] | None = None
        """Weak: tf.data alone holds the iterator, whose threads end with it."""
        self._ended_early = False
        """Whether a pass has just ended that was shorter than declared: what starts next is its empty repetition."""
        self._will_count = False
        self._resumed = False
        """Whether the next pass goes on from a state."""
        self._from_state, self._num_made = False, 0
        """Of the current pass: whether it went on from a state, and how many batches were made."""
        self._begin(counted=False)

    def _begin(self, *, counted: bool) -> None:
        self._counted = counted
        self._state = self._loader.state_dict()
        self._length = None if self._full is None else len(self._loader)
        self._waiting: deque[Place] = deque()
        """Places behind batches that were made and not received."""
        self._received: deque[Place] = deque(maxlen=_MOST_AHEAD)
        self._place: Place | None = None
        self._num_received = 0

    # -- called by TensorFlow, in threads of its own ----------------------------------------------------------------

    def _start(self) -> Iterator[tuple[Any, ...]]:
        """Begin a pass; called by tf.data for every iterator, and once more after a pass that ended early."""
        with self._lock:
            if self._ended_early or exiting():
                self._ended_early = False
                return iter(())
            self._warn_if_left()
            batches = iter(self._loader)
            self._begin(counted=self._will_count)
            self._from_state, self._num_made = self._resumed, 0
            self._will_count = self._resumed = False
            one = _One(self, batches)
            self._current = weakref.ref(one)
            watch()
            return one

    def _warn_if_left(self) -> None:
        """Tell of a resumed pass that was begun and left: Keras does that unasked, under a strategy."""
        if self._from_state and not self._resumed and self._length and 0 < self._num_made < self._length:
            warnings.warn(
                f"a pass that went on from a state was left after {self._num_made} of the {self._length} batches it "
                "had; this iteration is the next pass, and the rest does not come. Under a strategy, Keras takes one "
                "batch before training: load the state in a callback's on_train_begin (docs/tensorflow.md)",
                PenstockWarning,
                stacklevel=2,
            )

    def _made(self, one: _One, built: Built) -> None:
        place = built.work.plan, self._loader.steps_of(built.end)
        with self._lock:
            if self._is_current(one):
                self._num_made += 1
                self._waiting.append(place)
                if not self._counted:
                    self._receive()

    def _is_current(self, one: _One) -> bool:
        return self._current is not None and self._current() is one

    def _receive(self) -> None:
        if self._waiting:
            self._place = self._waiting.popleft()
            self._received.append(self._place)
            self._num_received += 1

    def _came_out(self) -> np.int64:
        """Note that a batch has come out of the last stage."""
        with self._lock:
            if not self._counted:  # an iterator that `Batches.__iter__` did not make: known by its first batch
                self._counted = True
                self._waiting.extendleft(reversed(self._received))
                self._received.clear()
                self._num_received = 0
            self._receive()
        return np.int64(0)

    def _batch_of(self, one: _One) -> tuple[Any, ...]:
        built, arrays = one.batches.take_as(self._hand_over)
        self._made(one, built)
        return cast("tuple[Any, ...]", arrays)

    def _hand_over(self, built: Built) -> tuple[Built, tuple[Any, ...]]:
        """Return a batch as the arrays of tensors; where that fails, it was not delivered."""
        self._check_columns(built.batch)
        return built, tuple(array for form in self._forms for array in form.arrays(built.batch[form.name]))

    def _check_columns(self, batch: Mapping[str, Any]) -> None:
        """Refuse a batch that lacks columns or has others: these would be left out without a word."""
        if batch.keys() == self._names:
            return
        lacks, more = [sorted(names) for names in (self._names - batch.keys(), batch.keys() - self._names)]
        wrong = f"without the column {lacks[0]!r}, only" if lacks else f"with the column {more[0]!r}, among"
        raise TransformError(
            f"a batch came {wrong} {', '.join(map(repr, batch))}, where the element spec has "
            f"{', '.join(repr(form.name) for form in self._forms)}; a transform must give the same columns for every "
            "batch, those of element_spec= where that is given"
        )

    # -- for the user -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the batches left in the current pass, exact."""
        with self._lock:
            if self._length is None:
                raise TypeError("a loader with epochs=None has no length")
            return self._length - self._num_received

    @property
    def next_length(self) -> int | None:
        """Batches that the next iteration gives; None where it does not end."""
        with self._lock:
            return self._length if self._resumed else self._full

    @property
    def pass_number(self) -> int:
        """The pass, counted from 0, of the batch that the consumer receives next."""
        with self._lock:
            epochs = self._loader._options.epochs or 1
            if self._length and self._num_received >= self._length:  # also where other ranks have batches left
                return int(self._state["epoch"]) // epochs + 1
            return int(self.state_dict()["epoch"]) // epochs

    def state_dict(self) -> dict[str, Any]:
        """Return the place of this run as small JSON: what the consumer has received; the same on every rank."""
        with self._lock:
            if self._place is None:
                return self._state
            return self._loader.state_after(*self._place)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state with the next iteration: of any world, batch size or framework, of the same data."""
        with self._lock:
            self._loader.load_state_dict(state)
            self._current, self._ended_early, self._resumed = None, False, True
            self._begin(counted=False)

    def __repr__(self) -> str:
        return f"penstock.tensorflow.{self._loader!r}"


class _One:
    """The iterator of one pass, held by tf.data alone: its threads end when tf.data drops it."""

    def __init__(self, delivery: Delivery, batches: Any) -> None:
        self._delivery = delivery
        self.batches = batches
        self._num = 0
        self._over = False

    def __iter__(self) -> _One:
        return self

    def __next__(self) -> tuple[Any, ...]:
        delivery = self._delivery
        try:
            if self._over:  # after an error somebody asks for more
                raise StopIteration
            arrays = delivery._batch_of(self)
        except StopIteration:
            if not self._over and not delivery._is_current(self):
                raise LoaderClosed(
                    "this iterator was ended: another one was made of the same dataset, or a state was loaded; make a "
                    "loader for each"
                ) from None
            self._over = True
            delivery._ended_early = delivery._full is None or self._num < delivery._full
            raise
        except BaseException:
            self._over = True
            self.batches.stop()
            if exiting():  # nobody shall read of it
                raise StopIteration from None
            raise
        self._num += 1
        return arrays


class Batches(Front, tf.data.Dataset):  # type: ignore[misc]
    """A `tf.data.Dataset` of batches that can also be saved, resumed and closed; made by `penstock.tensorflow.loader`.

    `state_dict()` tells what has come out of this dataset, whatever waits in stages inside. `map`, `prefetch`,
    `with_options` and `enumerate` give such a dataset again; behind others (`batch`, `shuffle`, `take`, ...) the state
    is that of what has gone into them. Use the state of the last `Batches` of a pipeline.
    """

    def __init__(self, inner: Any, delivery: Delivery, *, counted: bool) -> None:
        self._inner = inner
        self._is_counted = counted
        self._outer = _counting(inner, delivery) if counted else inner
        self.penstock = self._behind = delivery
        """The loader behind, with the state of what was received."""
        tf.data.Dataset.__init__(self, self._outer._variant_tensor)  # by name: that of TF1 takes no argument

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
        delivery = self.penstock
        with delivery._lock:
            delivery._loader._check_open()
            delivery._ended_early = False
            delivery._will_count = self._is_counted
        return super().__iter__()

    def __len__(self) -> int:
        """Return the batches that the next iteration gives, exact: after `load_state_dict` those that are left.

        `cardinality()` is that of a whole pass, also then: Keras takes it for the length of every epoch to come.
        """
        length = self.penstock.next_length
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

    def state_dict(self) -> dict[str, Any]:
        """Return the place of this run as small JSON: what the consumer has received; the same on every rank."""
        return self.penstock.state_dict()

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


def _counting(inner: Any, delivery: Delivery) -> Any:
    """Return the dataset with a stage behind it that notes every element that comes out."""
    whole = type(inner.element_spec) is tuple

    def passed(*element: Any) -> Any:
        tf.numpy_function(delivery._came_out, [], tf.int64)  # stateful: never left out
        return element if whole else element[0]

    # `inner.options()` warns in graph mode, and then returns this.
    if not inner._options_attr.experimental_optimization.inject_prefetch:
        return inner.map(as_it_is(passed))
    options = tf.data.Options()  # tf.data would add it at the very end, behind the count
    options.experimental_optimization.inject_prefetch = False
    return inner.prefetch(tf.data.AUTOTUNE).map(as_it_is(passed)).with_options(options)
