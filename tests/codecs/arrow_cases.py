"""One case for every Arrow type: how to draw its values and build its arrays; and how to compare row values."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from penstock.codecs.arrow import Fixed, column_kind
from penstock.codecs.arrow_kinds import form_of

Values = st.SearchStrategy[Any]


def types_page() -> str:
    return (Path(__file__).parents[2] / "docs" / "types.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Case:
    type: pa.DataType
    values: Values
    build: Callable[[list], pa.Array]

    @property
    def stacked(self) -> bool:
        return isinstance(column_kind(self.type, name="c"), Fixed)

    def example(self, *, nulls: bool) -> pa.Array:
        return self.build([_zero(self.type)] * 3 + [None] * nulls)


def _zero(kind: pa.DataType) -> Any:
    form = form_of(kind)
    if form == "extension":
        return _zero(kind.storage_type)
    if form in ("dictionary", "runs"):
        return _zero(kind.value_type)
    if form == "fixed_list":
        return [_zero(kind.value_type)] * kind.list_size
    if pa.types.is_fixed_size_binary(kind):
        return bytes(kind.byte_width)
    zeros = {"number": np.float16(0) if kind == pa.float16() else 0, "bool": False, "temporal": 0}
    return (zeros | {"decimal": Decimal(0), "text": "", "bytes": b""}).get(form, [])


def values_of(kind: pa.DataType) -> Values:
    """Draw Python values that pa.array takes for a type; never None on top."""
    return _DRAW[form_of(kind)](kind)


def _numbers(kind: pa.DataType) -> Values:
    if kind == pa.float16():
        return st.floats(width=16).map(np.float16)
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width)
    info = np.iinfo(str(kind))
    return st.integers(int(info.min), int(info.max))


def _temporals(kind: pa.DataType) -> Values:
    if kind == pa.date64():
        return st.integers(-20000, 20000).map(lambda day: day * 86_400_000)
    if pa.types.is_time(kind):
        return st.integers(0, 86_399 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit])
    limit = 2**31 - 1 if kind.bit_width == 32 else 2**62
    return st.integers(-limit, limit)


def _decimals(kind: pa.DataType) -> Values:
    limit = 10**kind.precision - 1
    exact = __import__("decimal").Context(prec=90)
    return st.integers(-limit, limit).map(lambda n: exact.scaleb(Decimal(n), -kind.scale))


def _bytes(kind: pa.DataType) -> Values:
    width = kind.byte_width if pa.types.is_fixed_size_binary(kind) else None
    return st.binary(min_size=width or 0, max_size=8 if width is None else width)


def _lists(kind: pa.DataType) -> Values:
    return st.lists(st.none() | values_of(kind.value_type), max_size=4)


def _fixed_lists(kind: pa.DataType) -> Values:
    inner = values_of(kind.value_type)
    return st.lists(st.none() | inner, min_size=kind.list_size, max_size=kind.list_size) | st.lists(
        inner, min_size=kind.list_size, max_size=kind.list_size
    )


def _structs(kind: pa.DataType) -> Values:
    fields = [kind.field(i) for i in range(kind.num_fields)]
    return st.fixed_dictionaries({field.name: st.none() | values_of(field.type) for field in fields})


_DRAW: dict[str, Callable[[pa.DataType], Values]] = {
    "null": lambda _: st.none(),
    "bool": lambda _: st.booleans(),
    "number": _numbers,
    "temporal": _temporals,
    "decimal": _decimals,
    "text": lambda _: st.text(max_size=6) | st.text("ab", max_size=6),
    "bytes": _bytes,
    "list": _lists,
    "fixed_list": _fixed_lists,
    "map": lambda kind: st.lists(
        st.tuples(values_of(kind.key_type), st.none() | values_of(kind.item_type)), max_size=3
    ),
    "struct": _structs,
    "dictionary": lambda kind: values_of(kind.value_type),
    "runs": lambda kind: values_of(kind.value_type),
    "extension": lambda kind: values_of(kind.storage_type),
}


@st.composite
def arrays_of(draw: st.DrawFn, case: Case) -> pa.Array:
    """Draw an array of a case: with or without nulls, and cut out of a longer one."""
    value = case.values if draw(st.booleans()) else st.none() | case.values
    array = case.build(draw(st.lists(value, max_size=20)))
    first = draw(st.integers(0, len(array)))
    return array.slice(first, draw(st.integers(0, len(array) - first)))


def _build_dictionary(kind: pa.DataType) -> Callable[[list], pa.Array]:
    def build(values: list) -> pa.Array:
        plain = pa.array(values, kind.value_type)
        # Repeats each value, and puts one in the dictionary that no row uses.
        spare = pa.array([_zero(kind.value_type)], kind.value_type)
        dictionary = pa.concat_arrays([spare, plain])
        return pa.DictionaryArray.from_arrays(pa.array(range(1, len(values) + 1), kind.index_type), dictionary)

    return build


def _build_runs(kind: pa.DataType) -> Callable[[list], pa.Array]:
    def build(values: list) -> pa.Array:
        ends = np.cumsum(np.arange(len(values)) % 3 + 1).tolist()
        return pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, kind.value_type), kind)

    return build


def _build_extension(kind: pa.DataType) -> Callable[[list], pa.Array]:
    return lambda values: pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


def case_of(kind: pa.DataType) -> Case:
    builders = {"dictionary": _build_dictionary, "runs": _build_runs, "extension": _build_extension}
    builder = builders.get(form_of(kind))
    return Case(kind, values_of(kind), (lambda values: pa.array(values, kind)) if builder is None else builder(kind))


class Celsius(pa.ExtensionType):
    """An extension that nobody but its author knows."""

    def __init__(self) -> None:
        super().__init__(pa.float32(), "tests.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> "Celsius":
        return cls()


def _if_present(*names: str) -> dict[str, pa.DataType]:
    """Types that this pyarrow may not have yet, without arguments."""
    return {name: getattr(pa, name)() for name in names if hasattr(pa, name)}


def _types() -> dict[str, pa.DataType]:
    plain = [pa.null(), pa.bool_(), pa.float16(), pa.float32(), pa.float64()]
    plain += [getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)]
    plain += [pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
    plain += [make(unit) for make in (pa.timestamp, pa.duration) for unit in ("s", "ms", "us", "ns")]
    plain += [pa.timestamp(unit, tz="America/New_York") for unit in ("s", "ms", "us", "ns")]
    plain += [pa.decimal128(5, 2), pa.decimal128(18, 0), pa.decimal128(38, 10), pa.decimal256(76, 20)]
    plain += [pa.decimal128(4, -2)]
    plain += [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(3)]
    plain += [pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.uint16(), pa.int32())]
    plain += [pa.dictionary(pa.int64(), pa.float64()), pa.dictionary(pa.int32(), pa.timestamp("ms"))]
    plain += [pa.run_end_encoded(pa.int32(), pa.int16()), pa.run_end_encoded(pa.int32(), pa.string())]
    plain += [pa.list_(pa.int32()), pa.large_list(pa.float32()), pa.list_(pa.bool_()), pa.list_(pa.date32())]
    plain += [pa.list_(pa.string()), pa.list_(pa.binary()), pa.list_(pa.decimal128(9, 2)), pa.list_(pa.null())]
    plain += [pa.list_(pa.list_(pa.int64())), pa.list_(pa.list_(pa.string())), pa.list_(pa.list_(pa.float32(), 2))]
    plain += [pa.list_(pa.float32(), 3), pa.list_(pa.int8(), 2), pa.list_(pa.bool_(), 3), pa.list_(pa.int16(), 0)]
    plain += [pa.list_(pa.list_(pa.int32(), 2), 3), pa.list_(pa.list_(pa.timestamp("us"), 1), 2)]
    plain += [
        pa.list_(pa.string(), 2),
        pa.list_(pa.list_(pa.int8()), 2),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
    ]
    plain += [pa.map_(pa.string(), pa.int32()), pa.map_(pa.int8(), pa.list_(pa.float64()))]
    inner = pa.struct([("a", pa.int32()), ("b", pa.string()), ("c", pa.list_(pa.float32()))])
    plain += [inner, pa.list_(inner), pa.list_(inner, 2), pa.list_(pa.map_(pa.string(), inner))]
    plain += [
        pa.fixed_shape_tensor(pa.float32(), [2, 3]),
        pa.fixed_shape_tensor(pa.uint8(), [2, 3, 1], permutation=[2, 0, 1]),
    ]
    plain += [Celsius()]
    if hasattr(pa, "list_view"):
        plain += [pa.list_view(pa.int32()), pa.large_list_view(pa.string()), pa.list_view(pa.list_view(pa.int8()))]
    if hasattr(pa, "decimal32"):
        plain += [pa.decimal32(7, 3), pa.decimal64(15, 3)]
    named = {str(kind): kind for kind in plain} | _if_present("string_view", "binary_view", "uuid", "bool8")
    if hasattr(pa, "string_view"):
        views = [pa.list_(pa.string_view()), pa.large_list(pa.binary_view()), pa.list_(pa.string_view(), 2)]
        views += [pa.map_(pa.string(), pa.string_view()), pa.dictionary(pa.int32(), pa.string_view())]
        views += [pa.struct([("a", pa.list_(pa.string_view()))]), pa.list_view(pa.string_view())]
        named |= {str(kind): kind for kind in views}
    named["dict_binary"] = pa.dictionary(pa.int32(), pa.binary())
    if hasattr(pa, "json_"):
        named["json"] = pa.json_()
    return named


CASES = {name: case_of(kind) for name, kind in _types().items()}

REFUSED = [
    pa.sparse_union([pa.field("a", pa.int32())]),
    pa.dense_union([pa.field("a", pa.int32()), pa.field("b", pa.string())]),
    pa.month_day_nano_interval(),
    pa.struct([]),
    pa.struct([("a", pa.int32()), ("a", pa.string())]),
]


def same(got: Any, want: Any) -> bool:
    """Compare row values strictly: types, dtypes, masks; NaN equals NaN."""
    if isinstance(want, np.ndarray):
        return _same_array(got, want)
    if isinstance(want, list | tuple):
        return type(got) is type(want) and len(got) == len(want) and all(map(same, got, want))
    if isinstance(want, dict):
        return type(got) is dict and list(got) == list(want) and all(same(got[key], want[key]) for key in want)
    if type(got) is not type(want):
        return False
    if isinstance(want, np.generic):
        return got.dtype == want.dtype and (got == want or (np.isnan(got) and np.isnan(want)))
    return str(got) == str(want) if isinstance(want, Decimal) else got == want


def _same_array(got: Any, want: np.ndarray) -> bool:
    if type(got) is not type(want) or got.dtype != want.dtype or got.shape != want.shape:
        return False
    if want.dtype == object:
        return all(map(same, got, want))
    masks = np.array_equal(np.ma.getmaskarray(got), np.ma.getmaskarray(want))
    nan = want.dtype.kind in "fmM"
    return masks and np.array_equal(np.ma.getdata(got), np.ma.getdata(want), equal_nan=nan)


def parquet_like() -> list[pa.Array]:
    """Arrays built from buffers, as a Parquet reader builds them: without `pa.array`."""
    numbers = pa.py_buffer(np.arange(4, dtype=np.int64))
    bits = pa.py_buffer(bytes([0b1011]))
    offsets = pa.py_buffer(np.array([0, 1, 1, 2, 4], np.int32))
    kinds = [pa.int64(), pa.float64(), pa.timestamp("ns"), pa.duration("s"), pa.date64(), pa.time64("ns")]
    found = [pa.Array.from_buffers(kind, 4, [valid, numbers]) for kind in kinds for valid in (None, bits)]
    found += [pa.Array.from_buffers(pa.bool_(), 4, [bits, bits])]
    texts = [
        pa.Array.from_buffers(kind, 4, [bits, offsets, pa.py_buffer(b"abcd")]) for kind in (pa.string(), pa.binary())
    ]
    found += [*texts, pa.Array.from_buffers(pa.decimal128(9, 2), 2, [None, numbers]), pa.nulls(3)]
    found += [
        pa.Array.from_buffers(pa.list_(child.type), 4, [bits, offsets], children=[child])
        for child in list(found[:5]) + texts
    ]
    found += [pa.FixedSizeListArray.from_arrays(found[0], 2), pa.DictionaryArray.from_arrays(found[0], texts[0])]
    return found
