"""Pushed client metrics (KIP-714) in the Prometheus format.

A metric has OpenTelemetry's name with underscores, as in OpenTelemetry's exporters for Prometheus. The names
of Kafka clients' own metrics begin with `org.apache.kafka.`. All other names get a prefix, so that a client
cannot push a metric with the name of one of the node's metrics. As KIP-714 requires, labels identify the
client instance. They override labels with the same names that the client has sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kwire.broker.api.telemetry.client_telemetry import ClientTelemetry
from kwire.broker.api.telemetry.pushed_metrics import InstanceMetrics, Series
from kwire.broker.observe.exposition import Exposition, labels
from kwire.wire.primitives import Uuid, uuid_to_text

SLICE: Final = 500
"""The number of series that are written before the next pause."""
PREFIX: Final = "kafka_server_client_metrics"
OURS: Final = "org_apache_kafka_"
OTHERS: Final = "client_"
LONGEST_TEXT: Final = 256
"""The maximum length of a text from a client: each series repeats the client id, which may have 32 KiB."""
NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]+")
RESERVED: Final = re.compile("^__+")


def client_metrics(telemetry: ClientTelemetry, out: Exposition) -> Iterator[None]:
    """Write the pushed metrics to `out`. The iterator yields regularly so that the event loop can run."""
    received = telemetry.pushed_metrics
    out.gauge(f"{PREFIX}_instance_count", len(telemetry.instances))
    out.counter(f"{PREFIX}_dropped_points_total", received.dropped_points)
    written = 0
    for instance_id, pushed in list(received.clients.items()):
        identity = _identity(instance_id, pushed)
        client = pushed.client
        out.gauge(
            f"{PREFIX}_instance_info",
            1,
            labels(
                **identity,
                client_software_name=client.software_name[:LONGEST_TEXT],
                client_software_version=client.software_version[:LONGEST_TEXT],
                client_source_address=client.address,
                client_source_port=client.port,
            ),
        )
        names: set[str] = set()
        for series, value in pushed.values.items():
            _write(series, value, identity, names, out)
            written += 1
            if not written % SLICE:
                yield


def _identity(instance_id: Uuid, pushed: InstanceMetrics) -> dict[str, object]:
    return {
        "client_instance_id": uuid_to_text(instance_id),
        "client_id": pushed.client.client_id[:LONGEST_TEXT],
    }


def _write(
    series: Series, value: float, identity: dict[str, object], names: set[str], out: Exposition
) -> None:
    """Write a value, unless another series of the client has the same Prometheus name and labels."""
    name = NOT_IN_NAMES.sub("_", series.name)
    if not name.startswith(OURS):
        name = OTHERS + name
    own = {_label(label): text for label, text in series.labels}
    series_labels = labels(**{**own, **identity})
    if series.is_monotonic:
        name = f"{name.removesuffix('_total')}_total"
    if name + series_labels in names:
        return
    names.add(name + series_labels)
    (out.counter if series.is_monotonic else out.gauge)(name, value, series_labels)


def _label(name: str) -> str:
    # Names with two underscores, such as `__name__`, are reserved by Prometheus.
    made = RESERVED.sub("_", NOT_IN_NAMES.sub("_", name))
    return f"_{made}" if made[:1].isdigit() or not made else made
