"""What users import in their own tests; with pytest they need not, for there are fixtures.

    from kwire.testing import Broker

    with Broker() as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        ...
        assert broker.records("orders", count=1)[0].value == b"first"

`Broker` runs in the test's process; `Kafka` asks the same things of any other.
"""

from kwire.testing.answers import Group, Member, Partition, Record
from kwire.testing.broker import Broker
from kwire.testing.faults import Fault, Faults
from kwire.testing.kafka import Kafka, wait_until
from kwire.testing.recorder import Recorder

__all__ = [
    "Broker",
    "Fault",
    "Faults",
    "Group",
    "Kafka",
    "Member",
    "Partition",
    "Record",
    "Recorder",
    "wait_until",
]
