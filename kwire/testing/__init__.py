"""Brokers for tests that use Kafka clients. The pytest plugin has fixtures that need no import.

    from kwire.testing import Broker

    with Broker() as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        ...
        assert broker.records("orders", count=1)[0].value == b"first"

`Broker` runs one broker in the process of the test, and `Cluster` runs several. `Kafka` has the same test
helpers for any other Kafka cluster, and `Proxy` injects faults into the requests of its clients.
`SimulatedCluster` runs a cluster on virtual time, where a seed decides
what fails. `History` checks what clients of any Kafka cluster have observed.

Every type in the signatures of these classes is a name of this package. An editor completes the names of
APIs and errors, because they are the literal types `ApiName` and `ErrorName`. `ApiError` is the exception for
errors that a broker returns, and `ErrorCode` has their codes.

`Cluster`, `SimulatedCluster`, `Proxy`, `History` and most types are imported on first use.
"""

import sys
from typing import TYPE_CHECKING, Any

if sys.version_info < (3, 11):  # noqa: UP036 - as in kwire/cli/__init__.py
    raise ImportError(f"kwire needs Python 3.11 or newer, and this is Python {sys.version.split()[0]}")

from kwire.host.platform import IS_SUPPORTED, Unavailable
from kwire.testing.kept_modules import KEPT_MODULES

if TYPE_CHECKING or IS_SUPPORTED:
    from kwire.testing.acl import Acl, Denial
    from kwire.testing.broker import Broker
    from kwire.testing.faults import Fault, Faults
    from kwire.testing.kafka import Kafka, wait_until
    from kwire.testing.recorder import Recorder
    from kwire.testing.results import Group, Member, Record, Token, TopicPartition
    from kwire.testing.tls import Tls
    from kwire.testing.users import SUPER_USER, ClientConfig

if TYPE_CHECKING:
    from kwire.testing.acl import OperationName
    from kwire.testing.anomalies import Anomaly, AnomalyKind
    from kwire.testing.broker import AioBroker, Process
    from kwire.testing.cluster import AioCluster, Cluster
    from kwire.testing.exchange import Exchange
    from kwire.testing.faults import FaultOptions
    from kwire.testing.history import History
    from kwire.testing.kafka import AioKafka
    from kwire.testing.lookup_table import LookupTable
    from kwire.testing.names import ApiName, ErrorName
    from kwire.testing.observations import Partition, ReadRecord
    from kwire.testing.outages import Outages
    from kwire.testing.proxy.proxy import AioProxy, Proxy
    from kwire.testing.results import Headers
    from kwire.testing.simulated import SimulatedCluster
    from kwire.testing.simulated.broker import SimulatedBroker
    from kwire.testing.tls import ClientAuth, ClientTls, Defect
    from kwire.wire.errors import ApiError, ErrorCode

__all__ = [
    "Acl",
    "AioBroker",
    "AioCluster",
    "AioKafka",
    "AioProxy",
    "Anomaly",
    "AnomalyKind",
    "ApiError",
    "ApiName",
    "Broker",
    "ClientAuth",
    "ClientConfig",
    "ClientTls",
    "Cluster",
    "Defect",
    "Denial",
    "ErrorCode",
    "ErrorName",
    "Exchange",
    "Fault",
    "FaultOptions",
    "Faults",
    "Group",
    "Headers",
    "History",
    "Kafka",
    "LookupTable",
    "Member",
    "OperationName",
    "Outages",
    "Partition",
    "Process",
    "Proxy",
    "ReadRecord",
    "Record",
    "Recorder",
    "SimulatedBroker",
    "SimulatedCluster",
    "SUPER_USER",
    "Tls",
    "Token",
    "TopicPartition",
    "wait_until",
]

KEPT_MODULES.install()

_LAZY_IMPORTS = {
    "AioBroker": "kwire.testing.broker",
    "AioCluster": "kwire.testing.cluster",
    "AioKafka": "kwire.testing.kafka",
    "AioProxy": "kwire.testing.proxy.proxy",
    "Anomaly": "kwire.testing.anomalies",
    "AnomalyKind": "kwire.testing.anomalies",
    "ApiError": "kwire.wire.errors",
    "ApiName": "kwire.testing.names",
    "ClientAuth": "kwire.testing.tls",
    "ClientTls": "kwire.testing.tls",
    "Cluster": "kwire.testing.cluster",
    "Defect": "kwire.testing.tls",
    "ErrorCode": "kwire.wire.errors",
    "ErrorName": "kwire.testing.names",
    "Exchange": "kwire.testing.exchange",
    "FaultOptions": "kwire.testing.faults",
    "Headers": "kwire.testing.results",
    "History": "kwire.testing.history",
    "LookupTable": "kwire.testing.lookup_table",
    "OperationName": "kwire.testing.acl",
    "Outages": "kwire.testing.outages",
    "Partition": "kwire.testing.observations",
    "Process": "kwire.testing.broker",
    "Proxy": "kwire.testing.proxy.proxy",
    "ReadRecord": "kwire.testing.observations",
    "SimulatedBroker": "kwire.testing.simulated.broker",
    "SimulatedCluster": "kwire.testing.simulated",
}


def __getattr__(name: str) -> Any:
    """Import a name of `_LAZY_IMPORTS` on first use, so that importing `Broker` stays fast."""
    if not IS_SUPPORTED and name in __all__:
        return Unavailable
    from importlib import import_module

    if name not in _LAZY_IMPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY_IMPORTS[name]), name)
