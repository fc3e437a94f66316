"""`penstock.Writer`: rows, columns or tables in, a dataset out, committed as a whole.

The only module of this package that sees all its stages: `sources` normalises data and cuts it into encode tasks,
`Pipeline` encodes and stores them through `files`, `Journal` records what is durable, `staging` publishes it. `write`
and `write_folder` are built on it. Cases:

- the `with` block succeeds: the dataset is there (or, with `part=`, waits for `penstock.commit`);
- an exception in the block, Ctrl-C: nothing is committed; what was written is removed, unless `resume=True`;
- `append` or `extend` rejects a value: raised there, or by a later call or the end of the block if a codec found it
  later; then nothing more is accepted;
- the process is killed: the rows in finished files are safe, and the target does not open until it is resumed.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from penstock.dataset.write_markers import writers
from penstock.errors import InternalError, SchemaError, StateMismatch
from penstock.progress import Progress
from penstock.storage.filesystem import first_look, resolve
from penstock.storage.publish import FILESYSTEM_ERRORS, remove
from penstock.write.commits import facts_of, remove_dead, same_layout, write_metadata
from penstock.write.files import FileWriter, Written
from penstock.write.options import AUTO, ROW_GROUP_BYTES, Compression, EncodeTask, WriteOptions
from penstock.write.sources import layout_of, normal_form, num_rows, schema_layout, works
from penstock.write.staging import DoneFile, Journal, claim, totals
from penstock.write.target import WriteTarget
from penstock.write.tasks import Hands, RowBuffer

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from penstock.schema.unischema import Unischema
    from penstock.write.layout import StorageLayout


class Writer:
    """Writes a dataset from rows and batches, as they come; the `with` block commits it.

        >>> with penstock.Writer("frames", schema) as writer:
        ...     for scene in scenes:
        ...         writer.append({"id": scene.id, "image": scene.pixels})

    Rows keep their order. Values are encoded on all cores while you produce the next ones; memory is bounded by a few
    row groups. After an exception in the block nothing is committed. To be used by one thread.

    Several processes can write one dataset: `Writer(url, schema, part=k)` in each, and `penstock.commit(url)` once at
    the end. A part that is written again replaces its earlier attempt.

    Args:
        url: folder to write; a path or any URL that `penstock.open` takes. It may be an existing empty folder.
        schema: fields and codecs; None: inferred from the first table or dict of columns given to `extend`. A field
            that is missing in a row must be nullable.
        row_group_bytes: most bytes of a row group, encoded and before Parquet's compression; at least one row.
        rows_per_file: rows of each file except the last of its folder; None: files of about 512 MiB.
        partition_by: columns that become folders (`name=value`) instead of being stored in the files.
        overwrite: replace an existing dataset at `url`. A folder with other files than Parquet is never replaced.
        resume: continue where an earlier writer of `url` stopped, if there is one: `rows` is the number of its rows
            that are safe, and the next row appended must be the one after them. If this writer fails, its finished
            files are kept.
        part: which of several writers this is, from 0; the rows of parts are in this order.
        workers: threads that encode; None: one for each core.
        storage_options: for the filesystem of a URL.
        filesystem: a pyarrow or fsspec filesystem to use instead.
        compression: Parquet's codec, or one for each column; "auto" is snappy, and none for images and zipped arrays.

    Raises:
        DatasetExists: something is at `url` already.
        StateMismatch: what is to be resumed was written with another schema or partitioning.
    """

    def __init__(  # noqa: PLR0913 - the public factory takes flat keywords
        self,
        url: str | os.PathLike[str],
        schema: Unischema | None = None,
        *,
        row_group_bytes: int = ROW_GROUP_BYTES,
        rows_per_file: int | None = None,
        partition_by: str | Sequence[str] | None = None,
        overwrite: bool = False,
        resume: bool = False,
        part: int | None = None,
        workers: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        filesystem: Any = None,
        compression: Compression = AUTO,
    ) -> None:
        names = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by or ())
        self._options = WriteOptions(
            row_group_bytes, rows_per_file, names, overwrite, compression, resume, part, workers
        )
        self._url, self._schema = str(url), schema
        layout = None if schema is None else schema_layout(schema, names)
        fs, path = resolve(url, storage_options=storage_options, filesystem=filesystem)
        first_look(fs, path, url)
        self._stage, self._lock = claim(WriteTarget.at(fs, path), self._options)
        self._journal = Journal(fs, self._stage.writer(part), self._stage.data)
        self._rows = 0
        self._hands = Hands(self._is_busy, True, *self._options.batch)
        self._buffer: RowBuffer | None = None
        self._files: FileWriter | None = None
        self._pipeline: Pipeline | None = None
        self._bar = Progress(None, f"writing {self._url}", unit="rows")
        self._written: Written | None = None
        self._is_open = True
        self._is_over = False
        self._begin(layout)

    # --- what it holds ------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Rows accepted so far; right after resuming, those that are safe from before."""
        return self._rows + (0 if self._buffer is None else self._buffer.num_rows)

    @property
    def safe_rows(self) -> int:
        """How many of the first rows are in finished files and would survive a crash."""
        return self._journal.rows

    @property
    def written(self) -> Written:
        """What was written, after the `with` block; for a part, its share."""
        if self._written is None:
            raise RuntimeError(f"nothing is committed to {self._url} yet; `written` is known after the `with` block")
        return self._written

    def __repr__(self) -> str:
        state = "writing" if self._is_open else "closed"
        return f"Writer({self._url!r}, {state}, rows={self.rows})"

    # --- rows in ------------------------------------------------------------------------------------------------------

    def append(self, row: Mapping[str, Any]) -> None:
        """Take one row: a dict of field name to value. Its arrays are copied, so you may reuse them.

        Raises:
            SchemaError: The row does not match the schema; names row, field, what is expected and what was given.
        """
        self._check_open()
        if self._buffer is None:
            self._buffer = RowBuffer(self._ready([row]), self._rows, self._hands)
        self._buffer.add(row)
        if self._buffer.is_full():
            self._flush()

    def extend(self, data: Any) -> None:
        """Take many rows, in order: anything that `penstock.write` takes; a dict is one of columns."""
        self._take(data, skip=0, copy=True)

    def checkpoint(self) -> int:
        """Make all rows so far durable, by closing the open files; return their number.

        Files are closed by themselves when they are full, so this is only needed if some rows cannot be given again.
        With `partition_by` and `rows_per_file`, nothing is safe before the end except what was checkpointed here.
        """
        self._check_open()
        self._flush()
        if self._pipeline is not None and self._files is not None:
            self._pipeline.call(self._files.checkpoint)
            self._journal.wait()
        return self.safe_rows

    def _take(self, data: Any, *, skip: int, copy: bool) -> None:
        self._check_open()
        data = normal_form(data, self._schema)
        layout = self._ready(data)
        self._flush()
        for next_work in works(data, layout, self._rows, skip=skip, hands=dataclasses.replace(self._hands, copy=copy)):
            self._submit(next_work)

    def _expect(self, data: Any) -> Any:
        """Return data in normal form, after the progress bar knows how many rows it has."""
        data = normal_form(data, self._schema)
        self._bar = Progress(num_rows(data), f"writing {self._url}", unit="rows")
        self._bar.update(self._rows)
        return data

    def _flush(self) -> None:
        if self._buffer is not None and self._buffer.num_rows:
            self._submit(self._buffer.take())
        self._buffer = None

    def _submit(self, next_work: EncodeTask) -> None:
        if self._pipeline is None:
            raise InternalError("a writer took rows before its layout was known; please report")
        self._pipeline.submit(next_work)
        self._rows += next_work.num_rows

    def _is_busy(self) -> bool:
        return self._pipeline is not None and self._pipeline.is_busy()

    def _check_open(self) -> None:
        if not self._is_open:
            raise RuntimeError(f"the writer of {self._url} is closed; create a new one")

    # --- begin and end ------------------------------------------------------------------------------------------------

    def _begin(self, layout: StorageLayout | None) -> None:
        try:
            self._journal.start(resume=self._options.resume)
            self._stage.remove_files(self._options.prefix, keep={file.path for file in self._journal.files})
            self._rows = self._journal.rows
            if layout is not None:
                self._start(layout)
        except BaseException:
            self.abort()
            raise

    def _ready(self, data: Any) -> StorageLayout:
        """Return the layout; without a schema, the first data decides it."""
        if self._files is None:
            self._start(layout_of(data, self._schema, self._options.partition_by))
        return self._layout

    def _start(self, layout: StorageLayout) -> None:
        self._layout = layout
        facts = {**facts_of(layout, overwrite=self._options.overwrite), "resume": self._options.resume, **self._notes()}
        # Refuse a schema that differs from that of the finished files or of the other parts.
        others = [f for f in writers(self._stage.fs, self._stage.journal) if f != self._journal.folder]
        kept = self._journal.facts() if self._journal.files else None
        if kept is None and others:
            kept = Journal(self._stage.fs, others[0], self._stage.data).facts()
        if kept is not None and not same_layout(kept, facts):
            raise StateMismatch(
                f"{self._url} was started with another schema or partition_by than this writer has; use the same, or "
                "penstock.discard(url) and start again"
            )
        self._journal.begin(facts)
        self._facts = facts
        place = (self._stage.fs, self._stage.data)
        self._files = FileWriter(place, layout, self._options, self._journal.record)
        self._files.sync_soon, self._files.check = self._journal.sync_soon, self._stage.check
        self._files.go_on(self._journal.files)
        self._pipeline = Pipeline(partial(self._store, self._files), threads=self._options.threads)

    def _notes(self) -> dict[str, Any]:
        """Return further entries for the journal of this writer; "cure" is what to do instead of resuming it."""
        return {}

    def _store(self, files: FileWriter, batch: Any) -> None:
        with self._told():
            files.add(batch)
        self._bar.update(batch.num_rows)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """If writing fails because the dataset was discarded or replaced meanwhile, raise that instead."""
        try:
            yield
        except FILESYSTEM_ERRORS:
            self._stage.check()
            raise

    def commit(self) -> Written:
        """Finish writing and publish the dataset; the `with` block does this at its end."""
        self._check_open()
        try:
            self._flush()
            if self._pipeline is None or self._files is None:
                raise SchemaError(f"{self._url} was given neither rows nor a schema; pass schema=Unischema(...)")
            with self._told():
                self._pipeline.call(self._files.checkpoint)
                files = self._finish()
            self._close()
            if self._options.part is None:
                with self._told():
                    self._stage.publish(overwrite=self._options.overwrite, files=files)
        except BaseException:
            self.abort()
            raise
        self._lock.release()
        self._is_over = True
        self._written = Written(self._url, **totals(files))
        if self._options.part is None:
            remove_dead(self._stage)
        return self._written

    def _finish(self) -> Sequence[DoneFile]:
        """Make everything of the dataset, or of this part, durable; return its files."""
        if self._options.part is not None:
            self._journal.end()
            return self._journal.files
        self._journal.wait()
        self._stage.check()
        files = write_metadata(self._stage, self._facts, self._journal.files)
        self._stage.remove_files(keep={file.path for file in files})
        return files

    def abort(self) -> None:
        """Stop writing and commit nothing; keeps finished files if `resume=True`. May be called twice.

        On a store that was being overwritten, new files may have replaced old ones already: then they stay, the target
        does not open, and the same rows with `resume=True` finish it.
        """
        if self._is_open and self._options.resume and self._pipeline is not None:
            with contextlib.suppress(Exception):  # an error that stopped the writing was raised already
                self._flush()
                self._pipeline.drain()  # accepted rows may complete files
        self._close()
        if not (self._is_over or self._options.resume or self._stage.is_moving()):
            self._is_over = True
            if self._options.part is None:
                self._stage.remove()
            else:
                self._stage.remove_files(self._options.prefix, keep=())
                remove(self._stage.fs, self._journal.folder)
        self._lock.release()  # last: others may remove a folder whose lock is free

    def _close(self) -> None:
        self._is_open = False
        if self._pipeline is not None:
            self._pipeline.close()
        if self._files is not None:
            self._files.abandon()
        self._journal.close()
        self._bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None:
            self.abort()
        elif self._is_open:
            self.commit()


AHEAD_BYTES = 256 << 20
"""Most bytes of rows that are being encoded or wait for the disk, however many cores there are."""


class Pipeline:
    """Runs encode tasks on all cores and stores them in order, in bounded memory; to be used by one thread.

    Tasks are encoded in a pool (codecs release the GIL where it matters), and one more thread passes the batches to
    `files`. After an error in a codec or on the disk nothing that follows is stored, and the next call raises it.
    `close` drops tasks that have not started; running ones finish first, and no thread outlives it. A caller that would
    have to wait encodes meanwhile.
    """

    def __init__(self, store: Callable[[pa.RecordBatch], None], *, threads: int) -> None:
        self._store = store
        self._most = threads + 2  # one being stored, one waiting, and one for each core
        self._helps = threads > 1
        self._threads = max(threads - 1, 1)  # the caller's own thread is the last one
        self._encoders = ThreadPoolExecutor(self._threads, thread_name_prefix="penstock-encode")
        self._storer = ThreadPoolExecutor(1, thread_name_prefix="penstock-store")
        self._waiting: deque[tuple[Future[pa.RecordBatch], EncodeTask]] = deque()
        """Tasks that no thread has started."""
        self._running: deque[tuple[Future[None], int]] = deque()
        self._begun = self._encoded = 0
        self._bytes = 0
        self._error: BaseException | None = None

    def submit(self, work: EncodeTask) -> None:
        """Take the next task; if too many are in progress, encode some of them here."""
        self._raise()
        encoded: Future[pa.RecordBatch] = Future()
        self._waiting.append((encoded, work))
        self._encoders.submit(self._encode_next)
        self._begun += 1
        self._running.append((self._storer.submit(self._finish, encoded), work.num_bytes))
        self._bytes += work.num_bytes
        while len(self._running) > self._most or (self._bytes > AHEAD_BYTES and len(self._running) > 1):
            # Encode a task that has not been started; if there is none, wait until the oldest is stored.
            if self._helps and self._waiting and not self._running[0][0].done():
                self._encode_next()
            else:
                self._wait_one()

    def is_busy(self) -> bool:
        """Tell whether every thread has work and one more task waits: then the caller should encode itself."""
        return self._helps and self._begun - self._encoded > self._threads

    def _encode_next(self) -> None:
        """Encode the next task, in any thread; does nothing if there is none."""
        try:
            encoded, work = self._waiting.popleft()
        except IndexError:
            return
        try:
            encoded.set_result(work.make())
        except BaseException as error:  # noqa: BLE001 - raised where the batch is stored
            encoded.set_exception(error)
        finally:
            self._encoded += 1  # racy on purpose: the count only decides who encodes

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function in the storing thread, after all tasks so far, and return its result."""
        self.drain()
        return self._storer.submit(function).result()

    def drain(self) -> None:
        """Return when all tasks are stored."""
        while self._helps and self._waiting and self._error is None:
            self._encode_next()
        while self._running:
            self._wait_one()
        self._raise()

    def close(self) -> None:
        """Drop what has not started and end the threads; may be called twice."""
        self._error = self._error or RuntimeError("the writer is closed")
        self._encoders.shutdown(cancel_futures=True)
        while self._waiting:
            self._waiting.popleft()[0].cancel()
        self._storer.shutdown(cancel_futures=True)
        self._running.clear()

    def _finish(self, encoded: Future[Any]) -> None:
        """Store one batch, in the storing thread; nothing is stored after an error."""
        if self._error is not None:
            return
        try:
            self._store(encoded.result())
        except BaseException as error:  # noqa: BLE001 - handed to the caller, in whose thread it is raised
            self._error = error

    def _wait_one(self) -> None:
        future, size = self._running.popleft()
        self._bytes -= size
        future.result()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
