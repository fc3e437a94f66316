"""Petastorm metadata made by hand: stub classes under Petastorm's names, and opcodes; holds no tests itself.

Three encodings of a field occur in the wild: protocol 0 of Python 2 (`copy_reg._reconstructor`), PySpark's named-tuple
restoration (`pyspark.serializers._restore`), and `NEWOBJ` of Python 3. None of this needs Petastorm or PySpark.
"""

import io
import pickle
from collections import OrderedDict, defaultdict
from decimal import Decimal

import numpy as np


class Stub:
    """An instance that pickles as `module.name` with a state, as a class of that name would."""

    def __init__(self, module, name, state=None):
        self.cls, self.state = type(name, (), {"__module__": module}), state or {}


class Named:
    """Something that pickles as a bare name."""

    def __init__(self, module, name):
        self.module, self.name = module, name


class Writer(pickle._Pickler):
    """Python's pickler, writing names without looking them up (stubs cannot be imported)."""

    def save(self, obj, save_persistent_id=True):
        kept = self.memo.get(id(obj)) if isinstance(obj, Stub | FieldStub) else None
        if kept is not None:
            self.write(self.get(kept[0]))
        elif isinstance(obj, Named):
            self.name_of(obj)
        elif isinstance(obj, Stub):
            self.save_stub(obj)
        elif isinstance(obj, FieldStub):
            obj.write(self)
        else:
            super().save(obj, save_persistent_id)

    def name_of(self, obj):
        if self.proto >= 4:
            self.save(obj.module)
            self.save(obj.name)
            self.write(pickle.STACK_GLOBAL)
        else:
            self.write(b"c" + obj.module.encode() + b"\n" + obj.name.encode() + b"\n")

    def save_stub(self, obj):
        cls = Named(obj.cls.__module__, obj.cls.__name__)
        if self.proto >= 2:
            self.save(cls)
            self.save(())
            self.write(pickle.NEWOBJ)
        else:
            self.reconstruct(cls, Named("__builtin__", "object"), None)
        self.memoize(obj)
        if obj.state:
            self.save(obj.state)
            self.write(pickle.BUILD)

    def reconstruct(self, cls, base, value):
        self.save(Named("copy_reg", "_reconstructor"))
        self.save((cls, base, value))
        self.write(pickle.REDUCE)


class FieldStub:
    """One UnischemaField in one of the three encodings."""

    def __init__(self, encoding, module, values):
        self.encoding, self.module, self.values = encoding, module, values

    def write(self, writer):
        cls = Named(self.module, "UnischemaField")
        if self.encoding == "reconstructor":
            writer.reconstruct(cls, Named("__builtin__", "tuple"), self.values)
        elif self.encoding == "restore":
            writer.save(Named("pyspark.serializers", "_restore"))
            writer.save(("UnischemaField", ("name", "numpy_dtype", "shape", "codec", "nullable"), self.values))
            writer.write(pickle.REDUCE)
        else:
            writer.save(cls)
            writer.save(self.values)
            writer.write(pickle.NEWOBJ)
        writer.memoize(self)


def dumps(value, protocol):
    file = io.BytesIO()
    Writer(file, protocol, fix_imports=False).dump(value)
    return file.getvalue()


def codec(name, package="petastorm", **state):
    return Stub(f"{package}.codecs", name, state)


def spark(name, **state):
    return Stub("pyspark.sql.types", name, state)


def schema_bytes(protocol, encoding, *, package="petastorm", more=()):
    """Return the pickle of a schema with every codec, and with `more` fields after them."""
    old = protocol < 3
    decimal = spark("DecimalType", precision=10, scale=4, hasPrecisionInfo=True)
    text = codec("ScalarCodec", package, _spark_type=spark("StringType"))
    image = codec("CompressedImageCodec", package, _image_codec=".jpeg", _quality=95)
    values = [
        ("id", Named("numpy", "int64"), (), codec("ScalarCodec", package, _spark_type=spark("LongType")), False),
        ("flag", Named("numpy", "bool_" if old else "bool"), (), None, True),
        ("name", Named("numpy", "unicode_" if old else "str_"), (), text, True),
        ("words", Named("numpy", "string_" if old else "bytes_"), (None,), codec("NdarrayCodec", package), False),
        ("price", Named("decimal", "Decimal"), (), codec("ScalarCodec", package, _spark_type=decimal), False),
        ("image", Named("numpy", "uint8"), (None, 16, 3), image, False),
        ("packed", Named("numpy", "float32"), (3, 3), codec("CompressedNdarrayCodec", package), False),
        *more,
    ]
    fields = [FieldStub(encoding, f"{package}.unischema", v) for v in values]
    named = {v[0]: f for v, f in zip(values, fields, strict=True)}
    state = {"_name": "Hand", "_fields": OrderedDict(named), **named}
    return dumps(Stub(f"{package}.unischema", "Unischema", state), protocol)


def index_bytes(protocol):
    """Return the pickle of two indexes, with NumPy scalars for keys."""
    held = defaultdict(set)
    for key, groups in {
        np.int64(200): {0, 2},
        np.str_("é"): {1},
        np.datetime64(3, "ms"): {4},
        Decimal("1.5"): {5},
    }.items():
        held[key] |= groups
    module = "petastorm.etl.rowgroup_indexers"
    single = Stub(module, "SingleFieldIndexer", {"_index_name": "by_id", "_column_name": "id", "_index_data": held})
    present = Stub(
        module, "FieldNotNullIndexer", {"_index_name": "there", "_column_name": "name", "_index_data": {1, 3}}
    )
    return dumps({"by_id": single, "there": present}, protocol)
