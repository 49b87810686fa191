"""Metrics of a controller: brokers, topics, elections and the commands of the active controller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kwire.broker.metadata.image import NO_LEADER
from kwire.broker.observe.quorum_metrics import applied_lag_ms
from kwire.broker.observe.requests import quantiles

if TYPE_CHECKING:
    from kwire.broker.observe.exposition import Exposition
    from kwire.broker.observe.ports import ObservedNode

SLICE: Final = 1_000
"""The number of partitions that are counted before the next pause."""
STATS: Final = "kafka_controller_controllerstats"
EVENTS: Final = "kafka_controller_controllereventmanager"
PREFIX: Final = "kafka_controller_kafkacontroller"


def controller_metrics(node: ObservedNode, out: Exposition) -> Iterator[None]:
    """Write the metrics of a controller. The iterator yields regularly so that the event loop can run."""
    image, runtime = node.image, node.metadata.runtime
    assert runtime is not None
    partitions = offline = not_preferred = 0
    for topic in list(image.topics.values()):
        for partition in topic.partitions:
            partitions += 1
            offline += partition.leader == NO_LEADER
            not_preferred += partition.leader != partition.replicas[0]
            if not partitions % SLICE:
                yield
    fenced = sum(broker.fenced for broker in image.brokers.values())
    counted, publisher = runtime.metrics, node.metadata.publisher
    for name, value in (
        ("activecontrollercount", int(node.quorum.leads)),
        ("activebrokercount", len(image.brokers) - fenced),
        ("fencedbrokercount", fenced),
        (
            "controlledshutdownbrokercount",
            sum(broker.in_controlled_shutdown for broker in image.brokers.values()),
        ),
        ("globaltopiccount", len(image.topics)),
        ("globalpartitioncount", partitions),
        ("offlinepartitionscount", offline),
        ("preferredreplicaimbalancecount", not_preferred),
        ("metadataerrorcount", publisher.apply_errors),
        ("lastappliedrecordoffset", image.offset),
        ("lastcommittedrecordoffset", node.quorum.high_watermark - 1),
        ("lastappliedrecordtimestamp", publisher.last_timestamp_ms),
        # As in Kafka, the active controller applies its records before they are committed.
        ("lastappliedrecordlagms", 0 if node.quorum.leads else applied_lag_ms(node)),
        ("newactivecontrollerscount", node.quorum.metrics.new_leaders),
        ("eventqueueoperationsstartedcount", counted.commands),
    ):
        out.gauge(f"{PREFIX}_{name}", value)
    out.counter(f"{STATS}_uncleanleaderelections_total", counted.unclean_elections)
    out.counter(f"{STATS}_electionfromeligibleleaderreplicas_total", counted.elr_elections)
    quantiles(f"{EVENTS}_eventqueueprocessingtimems", counted.commands, list(counted.processing_ms), out)
