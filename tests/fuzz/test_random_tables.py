"""Random schemas, values, writer options and filters: what comes is what pyarrow's own read and plain Python give."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

import penstock
from penstock.codecs.arrow_kinds import form_of
from penstock.dataset.read import CAN_VERIFY
from penstock.schema.arrow import flatten_structs
from penstock.storage.cache import MemoryCache
from tests.codecs.arrow_cases import CASES, case_of
from tests.codecs.arrow_plain import plain_rows
from tests.dataset.test_filter_tuples import NUMERIC, SIGNS, TIMES, column, passes
from tests.depth import depth
from tests.engine.test_columns import STORED, check_batch, check_rows, plain

FLAT = [CASES[name].type for name in STORED if form_of(CASES[name].type) in ("null", "bool", "number", "temporal")]
FLAT += [CASES[name].type for name in STORED if form_of(CASES[name].type) in ("decimal", "text", "bytes")]
KEYS = [pa.string(), pa.int32(), pa.binary()]
WORDS = st.sampled_from(["", "a", "b", "ab", "\u00e9", "a" * 70, "\U0001f600"])


def nested(inner):
    """A type around others: lists, structs, maps."""
    fields = st.lists(inner, min_size=1, max_size=3).map(lambda kinds: [(f"f{i}", k) for i, k in enumerate(kinds)])
    return st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.builds(pa.list_, inner, st.integers(1, 3)),
        st.builds(pa.map_, st.sampled_from(KEYS), inner),
        fields.map(pa.struct),
    )


TYPES = st.one_of(
    st.sampled_from([CASES[name].type for name in STORED]),
    st.recursive(st.sampled_from(FLAT), nested, max_leaves=4),
)
OPTIONS = st.fixed_dictionaries(
    {
        "row_group_size": st.integers(1, 6),
        "compression": st.sampled_from(["none", "snappy", "gzip", "zstd"]),
        "use_dictionary": st.booleans(),
        "write_statistics": st.booleans(),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "version": st.sampled_from(["1.0", "2.4", "2.6"]),
        "data_page_size": st.sampled_from([1, 64, 1 << 20]),
        "store_schema": st.booleans(),
        "write_page_index": st.booleans(),
        "use_compliant_nested_type": st.booleans(),
        **({"write_page_checksum": st.booleans()} if CAN_VERIFY else {}),
    }
)
REPEATED = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@st.composite
def tables(draw):
    """A few columns of random types, with an `id`."""
    rows = draw(st.integers(1, 12))
    columns = {"id": pa.array(range(rows))}
    for number in range(draw(st.integers(1, 3))):
        case = case_of(draw(TYPES))
        cells = case.values if draw(st.booleans()) else st.none() | case.values
        columns[f"c{number}"] = case.build(draw(st.lists(cells, min_size=rows, max_size=rows)))
    return pa.table(columns)


def stored(table, folder, files, options):
    """Write a table as a few files; return what pyarrow reads of each, or None where it cannot do that."""
    step = -(-table.num_rows // files)
    found = []
    try:
        for start in range(0, table.num_rows, step):
            path = folder / f"part-{start:03}.parquet"
            pq.write_table(table.slice(start, step), path, **options)
            found.append(pq.ParquetFile(path).read().combine_chunks())
    except (pa.ArrowException, OSError):  # seconds become milliseconds, and may overflow
        return None
    return found


@settings(max_examples=depth(60, 1000), **REPEATED)
@given(table=tables(), options=OPTIONS, files=st.integers(1, 3), data=st.data())
def test_random_tables_are_read_as_pyarrow_reads_them(tmp_path_factory, table, options, files, data):
    folder = tmp_path_factory.mktemp("tables")
    truth = stored(table, folder, files, options)
    assume(truth is not None)
    note(f"{table.schema} {options}")
    flat = [flatten_structs(one) for one in truth]
    wanted = {
        name: [plain(row) for one in flat for part in one[name].chunks for row in plain_rows(part)]
        for name in flat[0].column_names
    }
    ds = penstock.open(folder, cache=data.draw(st.sampled_from([None, MemoryCache(1 << 20)])))
    assert ds.columns == tuple(wanted)
    check_rows(ds, wanted)
    shuffle = data.draw(st.sampled_from([False, "groups", True]))
    with ds.loader(batch_size=data.draw(st.integers(1, 5)), shuffle=shuffle, epochs=2, workers=1) as loader:
        seen = []
        for batch in loader:
            check_batch(batch, wanted)
            seen += batch["id"].tolist()
    assert sorted(seen) == sorted([*range(table.num_rows)] * 2)


def cells_of(kind):
    if pa.types.is_dictionary(kind):
        return cells_of(kind.value_type)
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return WORDS
    return WORDS.map(str.encode) if pa.types.is_binary(kind) else column(kind)


COMPARED = [*NUMERIC, *TIMES, pa.bool_(), pa.string(), pa.large_string(), pa.binary()]
COMPARED += [pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.int64())]


@st.composite
def filtered(draw):
    """A table of columns that can be compared, and a filter of terms over them, any of several lists of which hold."""
    rows = draw(st.integers(1, 12))
    kinds = draw(st.lists(st.sampled_from(COMPARED), min_size=1, max_size=3))
    drawn = [draw(st.lists(st.none() | cells_of(kind), min_size=rows, max_size=rows)) for kind in kinds]
    columns = {f"c{number}": cells for number, cells in enumerate(drawn)}
    clauses = []
    for _ in range(draw(st.integers(1, 3))):
        terms = []
        for _ in range(draw(st.integers(1, 3))):
            number = draw(st.integers(0, len(kinds) - 1))
            name, kind = f"c{number}", kinds[number]
            signs = ["=", "!="] if pa.types.is_boolean(kind) else [*SIGNS]
            sign = draw(st.sampled_from([*signs, "in", "not in"]))
            there = [cell for cell in columns[name] if cell is not None]
            value = cells_of(kind) | st.sampled_from(there) if there else cells_of(kind)
            terms.append((name, sign, draw(st.lists(value | st.none(), max_size=4) if "in" in sign else value)))
        clauses.append(terms)
    return kinds, columns, clauses


@settings(max_examples=depth(60, 1000), **REPEATED)
@given(case=filtered(), options=OPTIONS, files=st.integers(1, 3), inside=st.booleans())
def test_random_filters_keep_what_python_says(tmp_path_factory, case, options, files, inside):
    kinds, columns, clauses = case
    arrays = {name: pa.array(columns[name], kind, from_pandas=False) for name, kind in zip(columns, kinds, strict=True)}
    rows = len(columns["c0"])

    def holds(row, term):
        name, sign, value = term
        return passes(columns[name][row], sign, value, kinds[int(name[1:])])

    wanted = [row for row in range(rows) if any(all(holds(row, term) for term in clause) for clause in clauses)]
    if inside:  # as fields of a struct
        arrays = {"s": pa.StructArray.from_arrays(list(arrays.values()), list(arrays))}
        clauses = [[(f"s.{name}", sign, value) for name, sign, value in clause] for clause in clauses]
    folder = tmp_path_factory.mktemp("filters")
    options |= {"version": "2.6", "store_schema": True}  # every type comes back as it was
    assume(stored(pa.table({"id": range(rows), **arrays}), folder, files, options) is not None)
    ds = penstock.open(folder, filters=clauses)
    assert [ds[i]["id"] for i in range(len(ds))] == wanted, (kinds, columns, clauses)


@settings(max_examples=depth(40, 1000), **REPEATED)
@given(data=st.data(), options=OPTIONS, files=st.integers(1, 3))
def test_random_expressions_keep_what_pyarrow_keeps(tmp_path_factory, data, options, files):
    kind = data.draw(st.sampled_from([pa.int64(), pa.float64(), pa.string(), pa.date32(), pa.timestamp("us")]))
    cells = data.draw(st.lists(st.none() | cells_of(kind), min_size=1, max_size=12))
    table = pa.table({"id": range(len(cells)), "x": pa.array(cells, kind, from_pandas=False)})
    x, cell = pc.field("x"), cells_of(kind).map(lambda one: pa.scalar(one, kind))
    terms = st.one_of(
        st.builds(lambda compare, value: compare(x, value), st.sampled_from([*SIGNS.values()]), cell),
        st.sampled_from([x.is_null(), x.is_valid(), x.is_null(nan_is_null=True), pc.field("id") > 2]),
        st.lists(cells_of(kind), max_size=3).map(lambda values: x.isin(pa.array(values, kind))),
    )
    expression = data.draw(
        st.recursive(
            terms,
            lambda inner: st.one_of(
                st.builds(lambda a, b: a & b, inner, inner),
                st.builds(lambda a, b: a | b, inner, inner),
                inner.map(lambda one: ~one),
            ),
            max_leaves=4,
        )
    )
    folder = tmp_path_factory.mktemp("expressions")
    options |= {"version": "2.6"}
    assume(stored(table, folder, files, options) is not None)
    wanted = table.filter(expression)["id"].to_pylist()
    ds = penstock.open(folder, filters=expression)
    assert [ds[i]["id"] for i in range(len(ds))] == wanted, (cells, expression)
