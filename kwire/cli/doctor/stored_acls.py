"""The ACLs in the metadata log of a node. A running node may write to the log meanwhile."""

from __future__ import annotations

import os

from kwire.broker.metadata.batches import TransactionFilter, decode_batches, size_of_complete_batches
from kwire.broker.security.acl import Acl, acl_of
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC
from kwire.cli.files.segment_files import base_offset, read_file
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import AccessControlEntryRecord, RemoveAccessControlEntryRecord


def stored_acls(metadata_dir: str) -> list[Acl]:
    """Return the sorted ACLs of the newest snapshot and of the log behind it, committed or not.

    `metadata_dir` is the log directory that has the metadata log. Raises CommandError, CorruptMetadata.
    """
    home = os.path.join(metadata_dir, f"{METADATA_TOPIC}-0")
    names = sorted(os.listdir(home)) if os.path.isdir(home) else []
    snapshots = [name for name in names if name.endswith(".checkpoint")]
    batches = list(decode_batches(read_file(os.path.join(home, snapshots[-1])))) if snapshots else []
    start = base_offset(snapshots[-1]) if snapshots else 0
    for name in names:
        if name.endswith(".log"):
            data = read_file(os.path.join(home, name))
            complete = data[: size_of_complete_batches(data)]
            batches += [batch for batch in decode_batches(complete) if batch.base_offset >= start]
    acls: dict[Uuid, AccessControlEntryRecord] = {}
    transactions = TransactionFilter()
    for batch in batches:
        for record in transactions.feed(batch.records):
            if isinstance(record, AccessControlEntryRecord):
                acls[record.id] = record
            elif isinstance(record, RemoveAccessControlEntryRecord):
                acls.pop(record.id, None)
    return sorted(map(acl_of, acls.values()))
