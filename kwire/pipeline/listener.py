"""A Spark listener that reports the progress of streams on standard error and in the metrics file."""

from __future__ import annotations

import sys
from collections.abc import Callable

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from kwire.pipeline.progress import Metrics, add_record_count, format_progress


class ProgressListener(StreamingQueryListener):
    """A listener for all streams of a session. It reports streams without a name as `name`."""

    def __init__(
        self, name: str, metrics: Metrics | None, write_line: Callable[[str], None] | None = None
    ) -> None:
        self._name = name
        self._metrics = metrics
        self._write_line = write_line if write_line is not None else _to_standard_error
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        name = event.name or self._name
        self._names[str(event.runId)] = name
        if self._metrics is not None:
            self._metrics.on_started(name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        add_record_count(progress)
        name = progress.name or self._name
        if progress.numInputRows:
            self._write_line(format_progress(name, progress))
        if self._metrics is not None:
            self._metrics.on_progress(name, progress)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        name = self._names.pop(str(event.runId), self._name)
        if self._metrics is not None:
            self._metrics.on_terminated(name)


def _to_standard_error(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
