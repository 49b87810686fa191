"""The sections in reports of failed tests: requests, faults, topics and groups."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from kwire.testing import Broker
from kwire.testing.broker import Process
from kwire.testing.request_report import MAX_CHARACTERS, report_requests
from tests.testing.test_plugin import no_other_plugins, run

__all__ = ["no_other_plugins"]

pytest_plugins = ["pytester"]

CLIENT = """
    from kwire.client.cluster_client import ClusterClient
    from kwire.client.producer import TopicProducer
    from kwire.testing.blocking_client import parse_address

    def client_of(broker):
        servers = [parse_address(broker.bootstrap_servers)]
        return ClusterClient(servers, client_id="billing", timeout_seconds=1)

    def send(broker, topic, *values):
        client = client_of(broker)
        sending = TopicProducer(client, topic, idempotent=False)
        sending.send({0: [(0, None, value, ()) for value in values]})
        client.close()
"""


def test_report_shows_faults_topics_and_groups_of_the_test(
    pytester: pytest.Pytester, process: Process
) -> None:
    result = run(
        pytester,
        CLIENT
        + """
    from kwire.client.groups import Group
    from kwire.client.cluster_client import ClusterClient
    from kwire.wire.messages.offset_commit import (
        OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic, OffsetCommitResponse,
    )
    from kwire.client.errors import raise_for_code

    def commit(broker, group, topic, offset):
        client = client_of(broker)
        one = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = OffsetCommitRequest(
            group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[one])]
        )
        def attempt():
            found = client.send_to_node(client.coordinator(group), request, OffsetCommitResponse)
            raise_for_code(found.topics[0].partitions[0].error_code, None, group)
        client.retry(attempt, 10)
        client.close()

    def test_before(kwire):
        kwire.produce("of-another-test", "x")

    def test_failing(kwire, kwire_topic, kwire_group):
        kwire.faults.return_error("Produce", "NOT_LEADER_OR_FOLLOWER", topic=kwire_topic)
        kwire.faults.delay("Fetch", 1, times=None)
        send(kwire, kwire_topic, b"first", b"second" * 100)
        commit(kwire, kwire_group, kwire_topic, 1)
        assert kwire.topics() == []
        """,
        process=process,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*Captured kwire requests call*",
            "*! Produce * from billing: *",
            "*injected fault: returned NOT_LEADER_OR_FOLLOWER*",
            "also * Metadata*",
            "*Captured kwire faults call*",
            "Produce (topic test_failing*): returned NOT_LEADER_OR_FOLLOWER: 1 request so far, 0 *",
            "Fetch: delayed by 1 s: 0 requests so far, all further requests",
            "*Captured kwire topics call*",
            "test_failing*-0: offsets 0 to 2",
            "  0: null = 'first'",
            "  1: null = 'secondsecond*...'",
            "*Captured kwire groups call*",
            "test_failing*: Empty, 0 members",
            "  test_failing*-0: committed offset 1, end offset 2, lag 1",
            "*Captured kwire data call*",
        ]
    )
    sections = result.stdout.str().partition("Captured kwire topics")[2].partition("Captured kwire data")[0]
    assert "of-another-test" not in sections


def test_report_shows_that_a_group_has_no_committed_offsets(
    pytester: pytest.Pytester, process: Process
) -> None:
    result = run(
        pytester,
        """
        from kafka import KafkaConsumer

        def test_failing(kwire_broker):
            kwire_broker.produce("orders", "x")
            servers = kwire_broker.bootstrap_servers
            consumer = KafkaConsumer("orders", bootstrap_servers=servers, group_id="billing",
                                     auto_offset_reset="earliest", enable_auto_commit=False)
            next(consumer)
            consumer.close()
            assert kwire_broker.lag("billing", "orders") == 0
        """,
        process=process,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*Captured kwire groups call*",
            "billing: Empty, 0 members",
            "  no committed offsets",
        ]
    )


def test_report_of_a_broker_without_a_fixture_has_the_state_before_the_end_of_the_with_statement(
    pytester: pytest.Pytester, process: Process
) -> None:
    result = run(
        pytester,
        f"""
        import pytest
        from kwire.testing import Broker

        @pytest.fixture
        def own():
            with Broker(process={process!r}) as broker:
                yield broker

        def test_direct():
            with Broker(process={process!r}, users={{"alice": "secret"}}, acls=[]) as broker:
                broker.produce("orders", "first")
                assert broker.topics() == []

        def test_fixture(own):
            own.produce("bills", "second")
            own.faults.ignore("Fetch")
            assert own.topics() == []
        """,
        process=process,
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "*Captured kwire topics call*",
            "orders-0: offsets 0 to 1",
            "  0: null = 'first'",
            "*Captured kwire faults call*",
            "Fetch: ignored: 0 requests so far, 1 further request",
            "*Captured kwire topics call*",
            "bills-0: offsets 0 to 1",
        ]
    )
    assert result.stdout.str().count("orders-0: ") == 1


def test_report_of_a_broker_that_does_not_respond_is_short_and_quick(
    pytester: pytest.Pytester, process: Process
) -> None:
    result = run(
        pytester,
        """
        def test_crashed(kwire_broker):
            kwire_broker.crash()
            assert False

        def test_hung(kwire_broker):
            kwire_broker.hang()
            assert False

        def test_full(kwire_broker, kwire_topic):
            kwire_broker.fill_disk()
            assert False
        """,
        process=process,
    )
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        ["not available: the broker is not running", "not available: *", "test_full-*-0: offsets 0 to 0"]
    )
    assert float(re.findall(r"in ([0-9.]+)s", result.stdout.str())[-1]) < 15


def test_long_messages_are_shortened_and_repetitions_counted(broker: Broker) -> None:
    broker.faults.return_error("Produce", "INVALID_RECORD", times=None)
    from kwire.client.cluster_client import ClusterClient
    from kwire.client.producer import TopicProducer
    from kwire.testing.blocking_client import parse_address
    from kwire.wire.errors import ApiError

    topic = broker.new_topic("x" * 60, partitions=9)
    client = ClusterClient([parse_address(broker.bootstrap_servers)], client_id="billing", timeout_seconds=1)
    for _ in range(3):
        sending = TopicProducer(client, topic, idempotent=False)
        with pytest.raises(ApiError):
            sending.send({index: [(0, None, b"v" * 50, ())] for index in range(9)})
    client.close()
    text = report_requests(list(broker.requests))
    produced, response, times, rest = text.splitlines()
    assert "! Produce" in produced
    assert "and 6 more" in produced + response
    assert "error_code: INVALID_RECORD" in response
    assert "3 times, the last at " in times
    assert rest.startswith("also ")
    assert max(map(len, text.splitlines())) < 2 * MAX_CHARACTERS


@pytest.fixture
def broker(process: Process) -> Iterator[Broker]:
    with Broker(process=process) as broker:
        yield broker


@pytest.mark.parametrize("fixture", ["kwire", "kwire_broker", "kwire_cluster"])
def test_unexpected_exception_inside_the_broker_fails_the_test(
    pytester: pytest.Pytester, fixture: str
) -> None:
    result = run(
        pytester,
        f"""
        from kwire.testing import Broker

        def break_it(monkeypatch, broker):
            from kwire.broker.api.groups import administration
            from kwire.client.cluster_client import ClusterClient
            from kwire.testing.blocking_client import parse_address
            from kwire.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse

            def fail(*args):
                raise KeyError("planted")

            monkeypatch.setattr(administration, "list_groups", fail)
            address = parse_address(broker.bootstrap_servers.split(",")[0])
            client = ClusterClient([address], client_id="billing", timeout_seconds=5)
            assert client.send(ListGroupsRequest(), ListGroupsResponse).error_code == -1
            client.close()

        def test_it(monkeypatch, {fixture}):
            break_it(monkeypatch, {fixture})

        def test_without_a_fixture(monkeypatch):
            with Broker() as broker:
                break_it(monkeypatch, broker)

        def test_next({fixture}):
            {fixture}.topics()
        """,
    )
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        ["*unexpected exception inside the broker*", "*Handling request *ListGroups*"]
    )
    result.stdout.fnmatch_lines(["*KeyError: 'planted'*"])


def test_unexpected_exception_in_the_child_process_fails_the_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        from textwrap import dedent

        from kwire.testing import Broker

        PLANT = dedent('''
            from kwire.broker.api.groups import administration

            def fail(*args):
                raise KeyError("planted")

            administration.original, administration.list_groups = administration.list_groups, fail
        ''')
        REPAIR = dedent('''
            from kwire.broker.api.groups import administration

            administration.list_groups = administration.original
        ''')

        class Code:
            # The child process executes the code when it decodes this object.
            def __init__(self, code):
                self.code = code

            def __reduce__(self):
                return exec, (self.code,)

        def break_it(broker):
            from kwire.client.cluster_client import ClusterClient
            from kwire.testing.blocking_client import parse_address
            from kwire.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse

            broker._embedded._call("is_running", Code(PLANT))
            servers = [parse_address(broker.bootstrap_servers)]
            client = ClusterClient(servers, client_id="billing", timeout_seconds=5)
            assert client.send(ListGroupsRequest(), ListGroupsResponse).error_code == -1
            client.close()
            broker._embedded._call("is_running", Code(REPAIR))

        def test_it(kwire):
            break_it(kwire)

        def test_own(kwire_broker):
            break_it(kwire_broker)

        def test_without_a_fixture():
            with Broker(process="child") as broker:
                break_it(broker)

        def test_next(kwire):
            kwire.topics()
        """,
        process="child",
    )
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(
        ["*unexpected exception inside the broker*", "*Handling request *ListGroups*'billing'*"]
    )
    result.stdout.fnmatch_lines(["*in _reply", "*KeyError: 'planted'*"])
