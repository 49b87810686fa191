"""What users import in their own tests.

from kwire.testing import Broker

with Broker() as broker:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
"""

from kwire.testing.broker import Broker

__all__ = ["Broker"]
