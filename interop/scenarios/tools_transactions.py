"""kafka-transactions with all its commands, on open, hanging and unknown transactions."""

from __future__ import annotations

import re
from typing import Any

from interop.brokers import Broker
from interop.raw import create_topic
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_transactions import (
    TransactionalId,
    end_offsets,
    wait_for_transaction_coordinator,
)
from interop.tools import IMPATIENT, TOOLS, a_file, another, lines_of, run, until

TRANSACTIONS = f"{TOOLS}.TransactionsCommand"


def transaction_tool_output(
    broker: Broker, verb: str, *arguments: str, ids: tuple[TransactionalId, ...] = ()
) -> list[str]:
    """Run a command of kafka-transactions. Return its lines with names for producer ids, without times."""
    with a_file(IMPATIENT) as settings:
        given = ("--command-config", settings, "--bootstrap-server", broker.bootstrap, verb, *arguments)
        lines = lines_of(run(TRANSACTIONS, *given))
    duration = r"( \d+(?= |$))?" if "Duration" in lines[0] else ""
    lines = [re.sub(rf"\b1[67]\d{{11}}\b{duration}", "<time>", line) for line in lines]
    names = {str(one.producer_id): f"<producer of {one.name}>" for one in ids}
    header = lines[0].split(" ")
    if "ProducerId" in header:
        column = header.index("ProducerId")
        for number, line in enumerate(lines[1:-1], 1):
            cells = line.split(" ")
            cells[column] = names.get(cells[column], cells[column])
            lines[number] = " ".join(cells)
    return sorted(lines)


@scenario(seconds=120)
def list_and_describe(broker: Broker) -> Any:
    """Run list, describe and describe-producers on transactions in several states."""
    topic = "tools-transactions"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic)
        wait_for_transaction_coordinator(client, "any")
        names = ("tools-tx-empty", "tools-tx-open", "tools-tx-done", "tools-tx-undone")
        ids = tuple(TransactionalId(client, name) for name in names)
        for one in ids:
            one.init()
        _, opened, done, undone = ids
        for one in (opened, done, undone):
            one.add((topic, 0))
            one.send(topic, version=11)
        done.end(commit=True)
        undone.end(commit=False)
        for one in (done, undone):
            one.described()
        until(lambda: end_offsets(client, topic)[1] >= 5)
        mine = ("--transactional-id-pattern", "tools-tx-.*")
        for label, arguments in {
            "list": mine,
            "list some": ("--transactional-id-pattern", "tools-tx-(open|done)"),
            "list long ones": (*mine, "--duration-filter", "3600000"),
            "list any duration": (*mine, "--duration-filter", "-1"),
            "list of a wrong pattern": ("--transactional-id-pattern", "tools-(", "--duration-filter", "1"),
        }.items():
            seen[label] = transaction_tool_output(broker, "list", *arguments, ids=ids)
        for name in (*names, "tools-tx-nobody", ""):
            seen[f"describe {name}"] = transaction_tool_output(
                broker, "describe", "--transactional-id", name, ids=ids
            )
        place = ("--topic", topic, "--partition", "0")
        for label, arguments in {
            "producers": place,
            "producers of a replica": (*place, "--broker-id", "1"),
            "producers of another replica": (*place, "--broker-id", "7"),
            "producers of another partition": ("--topic", topic, "--partition", "7"),
            "producers of another topic": ("--topic", "tools-nothing", "--partition", "0"),
            "producers of no partition": ("--topic", topic),
        }.items():
            seen[label] = transaction_tool_output(broker, "describe-producers", *arguments, ids=ids)
        for label, arguments in {
            "hanging": ("--topic", topic),
            "hanging in a partition": place,
            "hanging on a broker": ("--broker-id", "1"),
            "hanging on no broker": (),
            "hanging long": (*place, "--max-transaction-timeout", "1"),
        }.items():
            seen[label] = transaction_tool_output(broker, "find-hanging", *arguments, ids=ids)
        seen["no verb"] = transaction_tool_output(broker, "")[-1]
        opened.end(commit=False)
    return seen


@scenario(seconds=120)
def abort_and_terminate(broker: Broker) -> Any:
    """Run abort and forceTerminateTransaction on open and unknown transactions."""
    topic = "tools-transactions-ended"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic)
        wait_for_transaction_coordinator(client, "any")
        forced, aborted = (
            TransactionalId(client, "tools-tx-forced"),
            TransactionalId(client, "tools-tx-aborted"),
        )
        forced.init()
        forced.add((topic, 0))
        forced.send(topic, version=11)
        force = "forceTerminateTransaction"
        seen["force"] = transaction_tool_output(broker, force, "--transactionalId", forced.name)
        seen["forced"] = forced.described()
        seen["fenced"] = forced.send(topic, version=11)
        seen["force again"] = transaction_tool_output(broker, force, "--transactionalId", forced.name)
        seen["force an unknown id"] = transaction_tool_output(
            broker, force, "--transactionalId", "tools-tx-nobody"
        )
        aborted.init()
        aborted.add((topic, 0))
        aborted.send(topic, version=11)
        until(lambda: len(set(end_offsets(client, topic))) == 2)
        stable = end_offsets(client, topic)[0]
        place = ("--topic", topic, "--partition", "0")
        for label, arguments in {
            "abort with a wrong start offset": (*place, "--start-offset", "1000"),
            "abort before": (*place, "--start-offset", str(stable - 1)),
            "abort without an offset": place,
            "abort elsewhere": ("--topic", topic, "--partition", "7", "--start-offset", "0"),
            "abort": (*place, "--start-offset", str(stable)),
            "abort again": (*place, "--start-offset", str(stable)),
        }.items():
            seen[label] = transaction_tool_output(broker, "abort", *arguments)
        until(lambda: len(set(end_offsets(client, topic))) == 1)
        seen["stable"] = len(set(end_offsets(client, topic)))
        seen["state at the coordinator"] = aborted.described()
        seen["end"] = aborted.end(commit=True)
    return seen


@scenario(seconds=120)
def hanging_transactions(broker: Broker) -> Any:
    """Find and abort a hanging transaction, which is open in a partition but unknown to the coordinator."""
    with another(broker, {"transaction.partition.verification.enable": "false"}) as own:
        return observe_hanging(own)


def observe_hanging(broker: Broker) -> dict[str, Any]:
    topic = "tools-hanging"
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic)
        wait_for_transaction_coordinator(client, "any")
        lost, known = TransactionalId(client, "tools-tx-lost"), TransactionalId(client, "tools-tx-known")
        for one in (lost, known):
            one.init()
        known.add((topic, 0))
        ids = (lost, known)
        seen["sent"] = [lost.send(topic, version=11), known.send(topic, version=11)]
        seen["producers"] = transaction_tool_output(
            broker, "describe-producers", "--topic", topic, "--partition", "0", ids=ids
        )
        for label, arguments in {
            "in the topic": ("--topic", topic),
            "on the broker": ("--broker-id", "1"),
            "long": ("--topic", topic, "--max-transaction-timeout", "60"),
        }.items():
            seen[label] = transaction_tool_output(broker, "find-hanging", *arguments, ids=ids)
        place = ("--topic", topic, "--partition", "0")
        seen["abort"] = transaction_tool_output(broker, "abort", *place, "--start-offset", "0")
        until(lambda: end_offsets(client, topic)[0] > 0)
        seen["stable"] = end_offsets(client, topic)
        seen["commit"] = known.end(commit=True)
        until(lambda: len(set(end_offsets(client, topic))) == 1)
        seen["left"] = transaction_tool_output(broker, "find-hanging", "--topic", topic, ids=ids)
        seen["end"] = end_offsets(client, topic)
    return seen
