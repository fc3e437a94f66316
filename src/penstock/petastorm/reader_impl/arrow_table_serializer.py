"""Arrow tables to bytes and back, as an Arrow stream.

For programs that named it; the process pool of the engine does not send tables. Reading copies nothing.
"""

from __future__ import annotations

import pyarrow as pa

__all__ = ["ArrowTableSerializer"]


class ArrowTableSerializer:
    """Writes tables in Arrow's stream format."""

    def serialize(self, rows: pa.Table) -> pa.Buffer:
        """Return the table as one buffer."""
        sink = pa.BufferOutputStream()
        with pa.RecordBatchStreamWriter(sink, rows.schema) as writer:
            writer.write_table(rows)
        return sink.getvalue()

    def deserialize(self, serialized_rows: pa.Buffer | bytes) -> pa.Table:
        """Return the table of a buffer; it refers to the buffer's memory."""
        with pa.ipc.open_stream(serialized_rows) as reader:
            return reader.read_all()
