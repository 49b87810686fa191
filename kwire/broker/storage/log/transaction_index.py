"""The `.txnindex` file of a segment: the transactions whose abort markers are in the segment. KIP-98.

An entry has 34 bytes: version (0), producer id, first offset of the transaction, offset of its abort marker,
and the last stable offset after the marker. Entries are in the order of the markers. Most segments have no
abort marker, and then no index file.
"""

from __future__ import annotations

from struct import Struct

from kwire.broker.storage.disk import Disk, StorageError
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.plural import plural

_ENTRY = Struct(">hqqqq")
_VERSION = 0
ENTRY_BYTES = _ENTRY.size


class AbortedTxn(NamedTuple):
    """An aborted transaction. `last_offset` is the offset of its abort marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    """The last stable offset after the marker."""

    def encode(self) -> bytes:
        """Return the entry of a `.txnindex` file."""
        return _ENTRY.pack(_VERSION, *self)


def read_aborted_txns(disk: Disk, path: str) -> list[AbortedTxn]:
    """Return all entries of an index file, or none if the file is missing.

    Raises StorageError if the disk fails or the file is corrupt.
    """
    if not disk.exists(path):
        return []
    data = disk.read(path)
    if len(data) % ENTRY_BYTES:
        raise StorageError(f"{path} has {plural(len(data), 'byte')}, not a multiple of {ENTRY_BYTES}")
    found: list[AbortedTxn] = []
    for version, *fields in _ENTRY.iter_unpack(data):
        if version != _VERSION:
            raise StorageError(f"{path} has an entry with version {version}, expected {_VERSION}")
        found.append(AbortedTxn(*fields))
    return found


def append_aborted_txn(disk: Disk, path: str, entry: AbortedTxn) -> None:
    """Add an entry. The first entry creates the file. Raises StorageError."""
    file = disk.open(path, create=True)
    file.write_at(file.size(), [entry.encode()])


def truncate_aborted_txns(disk: Disk, path: str, offset: int) -> None:
    """Remove the entries whose markers are at or after `offset`. Raises StorageError."""
    if not disk.exists(path):
        return
    kept = 0
    for entry in read_aborted_txns(disk, path):
        if entry.last_offset >= offset:
            break
        kept += ENTRY_BYTES
    disk.open(path).truncate(kept)


def collect_aborted_txns(
    entries: list[AbortedTxn], fetch_offset: int, upper_bound_offset: int
) -> tuple[list[AbortedTxn], bool]:
    """Return the transactions of an index to skip in an offset range, and whether later indexes have none.

    `upper_bound_offset` is exclusive.
    """
    found: list[AbortedTxn] = []
    for entry in entries:
        if entry.last_offset >= fetch_offset and entry.first_offset < upper_bound_offset:
            found.append(entry)
        if entry.last_stable_offset >= upper_bound_offset:
            return found, True
    return found, False
