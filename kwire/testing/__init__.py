"""What users import in their own tests; with pytest they need not, for there are fixtures.

    from kwire.testing import Broker

    with Broker() as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        ...
        assert broker.records("orders", count=1)[0].value == b"first"

`Broker` runs in the test's process; `Kafka` asks the same things of any other. `Cluster` is several brokers,
`SimulatedCluster` one under a seed, and `History` checks what clients of any Kafka were told: these three are
imported when they are first asked for.
"""

from typing import TYPE_CHECKING, Any

from kwire.testing.broker import Broker
from kwire.testing.faults import Fault, Faults
from kwire.testing.kafka import Kafka, wait_until
from kwire.testing.recorder import Recorder
from kwire.testing.results import Group, Member, Record, Token, TopicPartition
from kwire.testing.users import ClientConfig

if TYPE_CHECKING:
    from kwire.testing.cluster import Cluster
    from kwire.testing.history import History
    from kwire.testing.simulated import SimulatedCluster

__all__ = [
    "Broker",
    "Cluster",
    "Fault",
    "Faults",
    "Group",
    "History",
    "Kafka",
    "ClientConfig",
    "Member",
    "Record",
    "Recorder",
    "SimulatedCluster",
    "Token",
    "TopicPartition",
    "wait_until",
]

_LATER = {
    "Cluster": "kwire.testing.cluster",
    "History": "kwire.testing.history",
    "SimulatedCluster": "kwire.testing.simulated",
}


def __getattr__(name: str) -> Any:
    """What a suite with one broker need not wait for."""
    from importlib import import_module

    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
