"""Allocation of producer ids in blocks of 1000. A broker that has just started has no block (KIP-730)."""

from __future__ import annotations

import itertools
import time
from typing import Any

from interop.brokers import Broker
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_transactions import wait_for_transaction_coordinator
from interop.tools import another

BLOCK = 1_000
PREFETCHED_AT = 900
LOADING = 14
WAIT_S = 20.0
SETTLE_S = 1.0
"""A wait in seconds that is far longer than the controller needs to allocate a block."""


def init_producer_id(client: RawClient, name: str | None = None, timeout_ms: int = 60_000) -> Any:
    response = client.call("InitProducerId", 4, TransactionalId=name, TransactionTimeoutMs=timeout_ms)
    return [response["ErrorCode"], response["ProducerId"], response["ProducerEpoch"]]


def wait_until_loaded(client: RawClient, name: str) -> None:
    """Wait until the coordinator of this transactional id has loaded, because loading causes errors."""
    wait_for_transaction_coordinator(client, name)
    deadline = time.monotonic() + WAIT_S
    while client.call("DescribeTransactions", 0, TransactionalIds=[name])["TransactionStates"][0][
        "ErrorCode"
    ] in (LOADING, 15, 16):
        assert time.monotonic() < deadline, "the coordinator does not load"
        time.sleep(0.05)


def allocated_ids(client: RawClient, count: int) -> list[int]:
    return [init_producer_id(client)[1] for _ in range(count)]


@scenario(seconds=120)
def id_blocks(broker: Broker) -> Any:
    """Allocate ids. Only the first request after a start must be retried. A restart discards the block."""
    seen: dict[str, Any] = {}
    with another(broker, {}) as own:
        with RawClient(own.bootstrap) as client:
            seen["first"] = init_producer_id(client)
            time.sleep(SETTLE_S)
            ids = allocated_ids(client, PREFETCHED_AT + 20)
            time.sleep(SETTLE_S)
            ids += allocated_ids(client, BLOCK)
            seen["ids"] = sorted({after - before for before, after in itertools.pairwise(ids)})
        for how in ("restart", "kill"):
            if how == "kill":
                own.kill()
                own.start()
            else:
                own.restart()
            with RawClient(own.bootstrap) as client:
                seen[how] = [init_producer_id(client)]
                time.sleep(SETTLE_S)
                seen[how] += [init_producer_id(client)[1] - ids[0]]
    return seen


@scenario(seconds=120)
def transactional_ids(broker: Broker) -> Any:
    """Allocate producer ids for transactional ids. Only requests that need a new producer id may fail."""
    seen: dict[str, Any] = {}
    with another(broker, {}) as own:
        with RawClient(own.bootstrap) as client:
            wait_until_loaded(client, "known")
            seen["invalid requests"] = [
                init_producer_id(client, "", 1000)[0],
                init_producer_id(client, "known", 0)[0],
            ]
            seen["first"] = init_producer_id(client, "known")
            time.sleep(SETTLE_S)
            seen["second"] = init_producer_id(client, "known")[::2]
        own.restart()
        with RawClient(own.bootstrap) as client:
            wait_until_loaded(client, "known")
            wait_until_loaded(client, "new")
            seen["known"] = init_producer_id(client, "known")[::2]
            seen["new"] = [init_producer_id(client, "new")]
            listed = client.call("ListTransactions", 1)["TransactionStates"]
            seen["new"] += [[one["TransactionalId"] for one in listed]]
            time.sleep(SETTLE_S)
            seen["new"] += [init_producer_id(client, "new")[::2]]
    return seen
