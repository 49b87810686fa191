"""Libraries that replace what a broker needs in the process of a test."""

from __future__ import annotations

import _thread
import json
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from kwire.testing import Broker
from kwire.testing.doubles import check_doubles, explain_failure

REMEDY = 'use Broker(..., process="child"), or set kwire_process = child in the configuration of pytest'
REPLACED_THREADS = f"gevent has replaced threads, so a broker cannot run in the process of the test: {REMEDY}"


@contextmanager
def green_threads() -> Iterator[None]:
    """Replace the function for new threads, as gevent does."""

    def start_new_thread(*_: object) -> None:
        raise AssertionError("a thread was started")

    start_new_thread.__module__ = "gevent.thread"
    with mock.patch.object(_thread, "start_new_thread", start_new_thread):
        yield


def test_nothing_is_found_in_a_process_without_doubles() -> None:
    check_doubles()
    explain_failure(ValueError())


def test_broker_does_not_start_with_green_threads() -> None:
    with green_threads(), pytest.raises(RuntimeError, match=re.escape(REPLACED_THREADS)):
        Broker().start()


def test_broker_under_gevent_does_not_start() -> None:
    program = """
import gevent.monkey
gevent.monkey.patch_all()
from kwire.testing import Broker
try:
    Broker().start()
except RuntimeError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == f"{REPLACED_THREADS}\n", done.stderr


def test_running_broker_fails_at_once_after_threads_are_replaced() -> None:
    with Broker() as broker:
        broker.produce("orders", "order 1")
        began_s = time.monotonic()
        with green_threads():
            for call in (lambda: broker.produce("orders", "order 2"), lambda: broker.advance(1)):
                with pytest.raises(RuntimeError, match=re.escape(REPLACED_THREADS)):
                    call()
        assert time.monotonic() - began_s < 5
        assert len(broker.records("orders", count=1)) == 1


def test_stop_fails_at_once_after_threads_are_replaced() -> None:
    broker = Broker()
    broker.start()
    thread = broker._embedded._thread  # type: ignore[union-attr]
    with green_threads(), pytest.raises(RuntimeError, match=re.escape(REPLACED_THREADS)):
        broker.stop()
    assert thread is not None
    thread.kill()


@pytest.mark.linux("epoll")
def test_broker_does_not_start_without_epoll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "epoll")
    with pytest.raises(RuntimeError, match=re.escape("A library has replaced select.epoll")):
        Broker().start()


def test_broker_does_not_import_its_modules_while_a_test_replaces_their_imports() -> None:
    program = """
from unittest import mock
from kwire.testing import Broker
with mock.patch("threading.Thread"):
    try:
        Broker().start()
    except RuntimeError as error:
        print(error)
with Broker() as broker:
    broker.produce("orders", "order 1")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("unittest.mock has replaced threading.Thread, so a broker cannot run")


def test_failed_start_names_the_likely_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker() as broker:
        broker.crash()
        monkeypatch.setattr(json, "loads", mock.Mock())
        with pytest.raises(RuntimeError, match=re.escape("unittest.mock has replaced json.loads")) as raised:
            broker.start()
        assert "quorum-state is invalid" in str(raised.value.__cause__)
        monkeypatch.undo()
