"""ACLs of the fixtures, and the section about denied requests in the report of a failed test."""

from __future__ import annotations

import pytest

from kwire.testing.broker import Process
from tests.testing.test_plugin import run

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable plugin entry points: an installed kwire would load this plugin a second time."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_report_names_the_acls_that_clients_lack(pytester: pytest.Pytester, process: Process) -> None:
    result = run(
        pytester,
        """
        import pytest
        from kwire.testing import Acl, Kafka

        USERS = {"alice": "alice-secret"}
        ACLS = [Acl.allow("alice", "READ", topic="*")]

        def produce(kafka):
            kafka.create_topic("orders")
            with Kafka(kafka.bootstrap_servers, properties=kafka.client_config("alice").java) as alice:
                alice.produce("orders", "x")

        @pytest.mark.kwire_broker(users=USERS, acls=ACLS)
        def test_broker(kwire_broker):
            produce(kwire_broker)

        @pytest.mark.kwire_cluster(size=1, users=USERS, acls=ACLS)
        def test_cluster(kwire_cluster):
            produce(kwire_cluster)

        @pytest.mark.kwire_broker(users=USERS, acls=ACLS)
        def test_without_denials(kwire_broker):
            kwire_broker.produce("orders", "x")
            raise ValueError
        """,
        process=process,
    )
    result.assert_outcomes(failed=3)
    sentence = (
        "Produce from kwire.testing: User:alice was denied WRITE on topic orders; "
        "allow it with Acl.allow('alice', 'WRITE', topic='orders')"
    )
    report = result.stdout.str()
    assert report.count(sentence) == report.count("kwire denied requests") == 2
    result.stdout.fnmatch_lines(["*kwire denied requests of broker 1*", sentence])
    result = run(
        pytester,
        """
        import pytest

        @pytest.mark.kwire_broker(acls=5)
        def test_broker(kwire_broker):
            pass
        """,
    )
    result.stdout.fnmatch_lines(["*does not accept acls=5: write kwire_broker(*acls=[[]Acl.allow(*"])
