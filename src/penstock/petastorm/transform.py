"""`petastorm.transform`: a function between reading and batching, and what it does to the schema.

The classes are those of the native API; see `penstock.schema.transform`.
"""

from penstock.schema.transform import TransformSpec, edit_field, transform_schema

__all__ = ["TransformSpec", "edit_field", "transform_schema"]
