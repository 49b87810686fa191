"""Spark's events of streams, handed on: to people on standard error, and to the metrics."""

from __future__ import annotations

import sys
from collections.abc import Callable

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from kwire.pipeline.progress import Metrics, complete, line


class Progress(StreamingQueryListener):
    """Tells of the streams of a session that is called `name`."""

    def __init__(self, name: str, metrics: Metrics | None, say: Callable[[str], None] | None = None) -> None:
        self._name = name
        self._metrics = metrics
        self._say = say if say is not None else _to_standard_error
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        name = event.name or self._name
        self._names[str(event.runId)] = name
        if self._metrics is not None:
            self._metrics.started(name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        complete(progress)
        name = progress.name or self._name
        if progress.numInputRows:
            self._say(line(name, progress))
        if self._metrics is not None:
            self._metrics.progressed(name, progress)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        name = self._names.pop(str(event.runId), self._name)
        if self._metrics is not None:
            self._metrics.ended(name)


def _to_standard_error(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
