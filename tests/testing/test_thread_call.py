"""Calls in threads, and the clients that they use."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from kwire.testing import wait_until
from kwire.testing.blocking_client import BlockingClient
from kwire.testing.client_pool import MAX_IDLE, ClientPool
from kwire.testing.thread_call import MAX_THREADS, Call, CallCancelled, CallThreads, check_cancelled, pause


def test_calls_beyond_the_limit_wait_for_a_thread() -> None:
    threads, running, may_end = CallThreads(), [], threading.Event()
    ended: list[None] = []

    def wait() -> None:
        running.append(threading.get_ident())
        may_end.wait()

    calls = [Call(wait, lambda: ended.append(None), can_be_cancelled=True) for _ in range(2 * MAX_THREADS)]
    for call in calls:
        threads.submit(call)
    wait_until(lambda: len(running) == MAX_THREADS)
    calls[-1].cancel()
    stopped = threading.Event()
    stop = Call(lambda: running.append(0), stopped.set, can_be_cancelled=False)
    threads.submit(stop)  # is not delayed by calls that wait
    wait_until(lambda: 0 in running)
    stopped.wait(10)
    assert len(running) == MAX_THREADS + 1, "the thread of `stop` takes no waiting call"
    may_end.set()
    wait_until(lambda: len(ended) == len(calls))
    assert len(running) == len(calls), "the call that was cancelled before it began is not made"
    assert len(set(running)) <= MAX_THREADS + 1
    with pytest.raises(CallCancelled):
        calls[-1].result()


def test_pause_ends_when_the_call_is_cancelled() -> None:
    ended = threading.Event()
    call = Call(lambda: pause(60), ended.set, can_be_cancelled=True)
    CallThreads().submit(call)
    call.cancel()
    assert ended.wait(10)
    with pytest.raises(CallCancelled):
        call.result()


def test_call_that_cannot_be_cancelled_ends_with_its_result() -> None:
    ended = threading.Event()

    def stop() -> str:
        pause(0)
        check_cancelled()
        return "stopped"

    call = Call(stop, ended.set, can_be_cancelled=False)
    call.cancel()
    CallThreads().submit(call)
    assert ended.wait(10)
    assert call.result() == "stopped"


class Client:
    """A client without connections."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_pool_closes_clients_that_were_in_use_when_it_was_closed() -> None:
    pool = ClientPool(lambda: cast(BlockingClient, Client()))

    def use(client: BlockingClient) -> BlockingClient:
        pool.close()
        assert not cast(Client, client).is_closed
        return client

    first = pool.call(lambda client: client)
    assert pool.call(use) is first
    assert cast(Client, first).is_closed
    assert pool.call(lambda client: client) is not first


def test_pool_keeps_few_idle_clients() -> None:
    clients: list[Client] = []

    def create() -> BlockingClient:
        clients.append(Client())
        return cast(BlockingClient, clients[-1])

    pool = ClientPool(create)

    def use(left: int) -> None:
        if left:
            pool.call(lambda client: use(left - 1))

    use(2 * MAX_IDLE)
    assert [each.is_closed for each in clients].count(False) == MAX_IDLE
    use(2 * MAX_IDLE)
    assert len(clients) == 3 * MAX_IDLE
