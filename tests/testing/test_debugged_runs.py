"""Tests that a debugger stops (docs/test-plugins.md)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kwire.testing.broker import Process

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def debug(pytester: pytest.Pytester, source: str, commands: str, *options: str) -> str:
    """Run a suite with commands for pdb, and return the output."""
    path = pytester.makepyfile(source)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "kwire.testing.plugin",
            "-p",
            "no:cacheprovider",
            "--tb=short",
            *options,
            path,
        ],
        cwd=pytester.path,
        input=commands,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    return done.stdout


def test_transaction_does_not_expire_while_pdb_has_stopped_the_test(
    pytester: pytest.Pytester, process: Process
) -> None:
    output = debug(
        pytester,
        """
        import pytest
        from confluent_kafka import Producer

        @pytest.mark.kwire_broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200})
        def test_it(kwire_broker):
            kwire_broker.create_topic("orders")
            producer = Producer({"bootstrap.servers": kwire_broker.bootstrap_servers,
                                 "transactional.id": "billing", "transaction.timeout.ms": 1000})
            producer.init_transactions(10)
            producer.begin_transaction()
            producer.produce("orders", b"x")
            producer.flush(10)
            breakpoint()
            producer.commit_transaction(10)
            assert len(kwire_broker.records("orders")) == 1
            kwire_broker.advance(1000)
        """,
        "import time; time.sleep(2.5)\np kwire_broker.topics()\nn\nc\n",
        *("-o", f"kwire_process={process}"),
    )
    assert "(Pdb) ['orders']" in output
    assert "1 passed" in output


def test_pdb_after_a_failure_shows_the_report_and_reaches_the_broker(
    pytester: pytest.Pytester, process: Process
) -> None:
    output = debug(
        pytester,
        """
        def test_failing(kwire, kwire_broker):
            kwire_broker.produce("orders", "first")
            assert len(kwire_broker.records("orders")) == 2

        def test_next(kwire, kwire_topic):
            kwire.produce(kwire_topic, "x")
        """,
        'p kwire.topics(), kwire_broker.produce("orders", "second")[0].offset\n'
        "p kwire_broker.advance(60000)\nc\n",
        *("--pdb", "-o", f"kwire_process={process}"),
    )
    assert output.count("Captured kwire topics call") == 1
    assert "  0: null = 'first'" in output
    assert "(Pdb) ([], 1)" in output
    assert "1 failed, 1 passed" in output


STOPPED = """
    import os, subprocess, sys
    from confluent_kafka import Producer
    from kwire.testing import Broker

    with Broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000}) as broker:
        broker.create_topic("orders")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers,
                             "transactional.id": "billing", "transaction.timeout.ms": 4000})
        producer.init_transactions(10)
        producer.begin_transaction()
        producer.produce("orders", b"x")
        producer.flush(10)
        subprocess.run(["sh", "-c", f"kill -STOP {os.getpid()}; sleep 6; kill -CONT {os.getpid()}"])
        producer.commit_transaction(10)
        assert len(broker.records("orders")) == 1
"""


def test_transaction_does_not_expire_while_all_threads_are_stopped(pytester: pytest.Pytester) -> None:
    result = pytester.run(sys.executable, pytester.makepyfile(STOPPED), timeout=60)
    assert result.ret == 0
