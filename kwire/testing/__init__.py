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

`Cluster`, `SimulatedCluster`, `Proxy` and `History` are imported on first use.
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
    from kwire.testing.cluster import Cluster
    from kwire.testing.history import History
    from kwire.testing.proxy.proxy import Proxy
    from kwire.testing.simulated import SimulatedCluster

__all__ = [
    "Acl",
    "Broker",
    "Cluster",
    "Denial",
    "Fault",
    "Faults",
    "Group",
    "History",
    "Kafka",
    "ClientConfig",
    "Member",
    "Proxy",
    "Record",
    "Recorder",
    "SUPER_USER",
    "SimulatedCluster",
    "Tls",
    "Token",
    "TopicPartition",
    "wait_until",
]

KEPT_MODULES.install()

_LAZY_IMPORTS = {
    "Cluster": "kwire.testing.cluster",
    "History": "kwire.testing.history",
    "Proxy": "kwire.testing.proxy.proxy",
    "SimulatedCluster": "kwire.testing.simulated",
}


def __getattr__(name: str) -> Any:
    """Import a class of `_LAZY_IMPORTS` on first use, so that importing `Broker` stays fast."""
    if not IS_SUPPORTED and name in __all__:
        return Unavailable
    from importlib import import_module

    if name not in _LAZY_IMPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY_IMPORTS[name]), name)
