"""Charge orders in a Celery worker. PAYMENTS_URL is the address of the payment service."""

import logging
import os
from urllib.request import urlopen

from celery import Celery
from confluent_kafka import KafkaException
from kombu.transport import confluentkafka


class QoS(confluentkafka.QoS):
    """Acknowledgments of tasks, each with a commit that ends before the worker receives another task."""

    def ack(self, delivery_tag: str) -> None:
        if delivery_tag in self._not_yet_acked:
            consumer = self.channel._get_consumer(self.get(delivery_tag).topic)
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as error:
                logging.warning("The task is not committed, and may run again: %s", error)
            del self._not_yet_acked[delivery_tag]


confluentkafka.Channel.QoS = QoS

app = Celery("celery_tasks")
app.conf.update(
    task_default_queue="charges",
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,  # remote control needs fanout, which kombu's transport does not have
    broker_transport_options={"polling_interval": 0.1},  # the default allows about one task per second
)


@app.task
def charge(order: str) -> None:
    urlopen(os.environ["PAYMENTS_URL"], data=order.encode()).close()
