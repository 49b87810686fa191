"""The producer ids and epochs under which a record was written more than once.

A broker recognizes a duplicate batch by producer id, epoch and sequence number. If a client sends a record
again under a new producer id or epoch, the broker cannot recognize the duplicate, so the duplicate is not the
broker's fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from interop.batches import walk
from interop.cluster.logins import Login, log_in
from interop.raw import fetch
from interop.raw_client import RawClient
from kwire.testing.history import Partition, ReadRecord


class Identity(NamedTuple):
    producer_id: int
    producer_epoch: int


def find_client_resends(
    bootstrap: str, login: Login | None, records: Iterable[ReadRecord]
) -> dict[bytes, list[Identity]]:
    """Return the values that a partition contains several times, each time under another identity.

    The identities of a value are in the order of `records`.
    """
    offsets: dict[tuple[Partition, bytes], list[int]] = defaultdict(list)
    for place, offset, value in records:
        offsets[place, value].append(offset)
    found = {}
    for (place, value), several in offsets.items():
        if len(several) > 1:
            identities = [identity(bootstrap, login, place, offset) for offset in several]
            if len(set(identities)) == len(several):
                found[value] = identities
    return found


def identity(bootstrap: str, login: Login | None, place: Partition, offset: int) -> Identity:
    """Fetch the batch that contains an offset from the partition's leader, and return its identity."""
    topic, partition = place
    with connect(bootstrap.partition(",")[0], login) as client:
        response = client.call("Metadata", 9, Topics=[{"Name": topic}], AllowAutoTopicCreation=False)
    [leader_id] = [
        each["LeaderId"]
        for each in response["Topics"][0]["Partitions"]
        if each["PartitionIndex"] == partition
    ]
    [leader] = [broker for broker in response["Brokers"] if broker["NodeId"] == leader_id]
    with connect(f"{leader['Host']}:{leader['Port']}", login) as client:
        answer = fetch(client, topic, offset, partition=partition)
    batch = walk(answer["Responses"][0]["Partitions"][0]["Records"])[0]
    assert batch["base_offset"] <= offset <= batch["base_offset"] + batch["last_offset_delta"], batch
    return Identity(batch["producer_id"], batch["producer_epoch"])


def connect(address: str, login: Login | None) -> RawClient:
    client = RawClient(address)
    if login is not None:
        log_in(client, login)
    return client
