"""The `.txnindex` of a segment: the transactions whose abort markers are in it. KIP-98.

An entry is 34 bytes: version (0), producer id, first offset of the transaction, offset of its marker, and
what was stable once the marker was written. Entries lie in the order of their markers. Most segments have
none, and no file then.
"""

from __future__ import annotations

from struct import Struct

from kwire.broker.storage.disk import Disk, StorageError
from kwire.wire.named_tuple import NamedTuple

_ENTRY = Struct(">hqqqq")
_VERSION = 0
ENTRY_BYTES = _ENTRY.size


class AbortedTxn(NamedTuple):
    """An aborted transaction: its first record that is still there, its marker, what was stable then."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        """The entry of a `.txnindex` file."""
        return _ENTRY.pack(_VERSION, *self)


def read_aborted_txns(disk: Disk, path: str) -> list[AbortedTxn]:
    """Every entry of an index; none where there is no file. StorageError for one that is damaged."""
    if not disk.exists(path):
        return []
    data = disk.read(path)
    if len(data) % ENTRY_BYTES:
        raise StorageError(f"{path} has {len(data)} bytes, which is no number of whole entries")
    found: list[AbortedTxn] = []
    for version, *fields in _ENTRY.iter_unpack(data):
        if version != _VERSION:
            raise StorageError(f"{path} has an entry of version {version}, not {_VERSION}")
        found.append(AbortedTxn(*fields))
    return found


def append_aborted_txn(disk: Disk, path: str, entry: AbortedTxn) -> None:
    """Add an entry, making the file for the first one. StorageError."""
    file = disk.open(path, create=True)
    file.write_at(file.size(), [entry.encode()])


def truncate_aborted_txns(disk: Disk, path: str, offset: int) -> None:
    """Drop the entries whose markers lie at `offset` or beyond. StorageError."""
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
    """What a reader of the range must leave out, and whether later indexes cannot have more of it."""
    found: list[AbortedTxn] = []
    for entry in entries:
        if entry.last_offset >= fetch_offset and entry.first_offset < upper_bound_offset:
            found.append(entry)
        if entry.last_stable_offset >= upper_bound_offset:
            return found, True
    return found, False
