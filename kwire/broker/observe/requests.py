"""Request metrics: counts and durations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kwire.broker.api.request.request_metrics import FETCH_FOLLOWER, ApiTimes, RequestMetrics
from kwire.broker.observe.exposition import Exposition, labels
from kwire.broker.observe.slow_requests import api_name
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode

QUANTILES: Final = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")
"""The quantiles of Kafka's percentiles, formatted as the JMX exporter formats them."""


PREFIX: Final = "kafka_network_requestmetrics"
ERROR_CODES: Final = frozenset(int(code) for code in ErrorCode)


def request_metrics(request_metrics: RequestMetrics, out: Exposition) -> None:
    """Write Kafka's RequestMetrics. As in Kafka, Fetch is also counted as FetchConsumer or FetchFollower."""
    for name, versions in _by_name(request_metrics.apis).items():
        for version, count in sorted(
            (version, sum(one.count for one in times)) for version, times in versions.items()
        ):
            out.counter(f"{PREFIX}_requests_total", count, labels(request=name, version=version))
        of_all = [one for times in versions.values() for one in times]
        count = sum(one.count for one in of_all)
        totals = [1000 * second for one in of_all for second in one.recent]
        delays = [1000 * second for one in of_all for second in one.recent_delays]
        local = [total - delay for total, delay in zip(totals, delays, strict=True)]
        sizes = [size for one in of_all for size in one.recent_bytes]
        for metric, values in (
            ("totaltimems", totals),
            ("localtimems", local),
            ("remotetimems", delays),
            ("requestbytes", sizes),
        ):
            quantiles(f"{PREFIX}_{metric}", count, values, out, request=name)
    for (key, code), count in sorted(request_metrics.errors.items()):
        # A controller of a newer version may have errors that this version does not know.
        error = ErrorCode(code).name if code in ERROR_CODES else str(code)
        out.counter(f"{PREFIX}_errors_total", count, labels(request=api_name(key), error=error))


def quantiles(
    name: str, count: int, values: Sequence[float], out: Exposition, **series_labels: object
) -> None:
    """Write a histogram as the JMX exporter does: the quantiles of recent values, and the count of all."""
    out.counter(f"{name}_count_total", count, labels(**series_labels))
    ordered = sorted(values)
    for quantile in QUANTILES:
        value = ordered[int(float(quantile) * (len(ordered) - 1))] if ordered else 0.0
        out.gauge(name, round(value, 3), labels(**series_labels, quantile=quantile))


def _by_name(apis: Mapping[tuple[int, int], ApiTimes]) -> dict[str, dict[int, list[ApiTimes]]]:
    """Group the durations by the request names of Kafka's metrics, then by version."""
    named: dict[str, dict[int, list[ApiTimes]]] = {}
    for (key, version), times in sorted(apis.items()):
        names = [api_name(key)]
        if key == FETCH_FOLLOWER:
            names = ["Fetch", "FetchFollower"]
        elif key == ApiKey.FETCH:
            names.append("FetchConsumer")
        for name in names:
            named.setdefault(name, {}).setdefault(version, []).append(times)
    return named
