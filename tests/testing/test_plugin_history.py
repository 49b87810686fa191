"""The history of recorded requests in tests with kwire's fixtures."""

from __future__ import annotations

import pytest

from kwire.testing.broker import Process
from tests.testing.test_plugin import no_other_plugins, run

__all__ = ["no_other_plugins"]

pytest_plugins = ["pytester"]


def test_history_of_the_shared_broker_has_the_requests_of_one_test(
    pytester: pytest.Pytester, process: Process
) -> None:
    result = run(
        pytester,
        """
        import pytest
        from confluent_kafka import Producer

        def produce(broker, topic):
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
            producer.produce(topic, b"x")
            producer.flush()

        @pytest.mark.parametrize("number", [1, 2])
        def test_shared(kwire, kwire_topic, number):
            produce(kwire, kwire_topic)
            history = kwire.history()
            assert history.acknowledged_count == 1
            history.check()

        @pytest.mark.kwire_broker({}, max_recorded_requests=1)
        def test_limit(kwire_broker, kwire_topic):
            produce(kwire_broker, kwire_topic)
            with pytest.raises(ValueError, match="max_recorded_requests=1 "):
                kwire_broker.history()

        @pytest.mark.kwire_cluster({}, max_recorded_bytes=1 << 30)
        def test_cluster(kwire_cluster, kwire_topic):
            assert kwire_cluster.brokers[1].requests.max_bytes == 1 << 30
        """,
        process=process,
    )
    result.assert_outcomes(passed=4)
