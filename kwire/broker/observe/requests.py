"""Request metrics: counts and durations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kwire.broker.api.request.request_metrics import FETCH_FOLLOWER, ApiTimes, RequestMetrics
from kwire.broker.observe.exposition import Exposition, labels
from kwire.broker.observe.slow_requests import api_name
from kwire.wire.api_keys import ApiKey

QUANTILES: Final = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")
"""The quantiles of Kafka's percentiles, formatted as the JMX exporter formats them."""


def request_metrics(request_metrics: RequestMetrics, out: Exposition) -> None:
    """Write Kafka's RequestMetrics. As in Kafka, Fetch is also counted as FetchConsumer or FetchFollower."""
    for name, versions in _by_name(request_metrics.apis).items():
        for version, count in sorted(
            (version, sum(one.count for one in times)) for version, times in versions.items()
        ):
            series_labels = labels(request=name, version=version)
            out.counter("kafka_network_requestmetrics_requests_total", count, series_labels)
        of_all = [one for times in versions.values() for one in times]
        count = sum(one.count for one in of_all)
        out.counter("kafka_network_requestmetrics_totaltimems_count", count, labels(request=name))
        seconds = sorted(second for one in of_all for second in one.recent)
        for quantile in QUANTILES:
            out.gauge(
                "kafka_network_requestmetrics_totaltimems",
                round(1000 * seconds[int(float(quantile) * (len(seconds) - 1))], 3),
                labels(request=name, quantile=quantile),
            )


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
