"""A Spark listener that reports the progress of streams on standard error and in the metrics file."""

from __future__ import annotations

import sys

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from kwire.pipeline.progress import Metrics, add_record_count, format_progress


class ProgressListener(StreamingQueryListener):
    """A listener for all streams of a session. It reports streams without a name as `name`."""

    def __init__(self, name: str, metrics: Metrics | None) -> None:
        self._name = name
        self._metrics = metrics
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
            print(format_progress(name, progress), file=sys.stderr, flush=True)
        if self._metrics is not None:
            self._metrics.on_progress(name, progress)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        name = self._names.pop(str(event.runId), self._name)
        if self._metrics is not None:
            self._metrics.on_terminated(name)
