"""Compaction: of all records with a key, the last one stays. KIP-58, KIP-354, KIP-534.

The broker chooses a log and how much of it may be cleaned (`candidates`), hands that to a worker as a line of
JSON, and puts what the worker has written in place (`cleaner`, `swap`). The worker (`worker`, a process of
its own, because a busy Python thread would hold every client up) reads the keys of the dirty part of the log,
from its end into a set (`newest_keys`) or, where that cannot be, from its beginning into a map of keys and
batches (`offset_map`), and copies the log, group of segments by group, without the batches and records that
are superseded (`rewriting`, `filtering`, `rebatching`). Records keep their offsets: what is gone leaves a
gap, and a batch keeps its first and last offset whatever is left of it.

What stays although a later record has its key:
- a producer's last batch, emptied, so that its sequence can go on after the producers are read from the log;
- the last batch of what was cleaned, emptied, so that the log's offsets do not seem to end earlier;
- a tombstone, for delete.retention.ms after the first cleaning that met it. That cleaning writes the time
  into the batch: base timestamp becomes the delete horizon, and bit 6 of the attributes says so;
- a transaction's marker, until a cleaning has found none of its records, and then as long as a tombstone.

Files of a segment in the making end in `.cleaned`; complete and synced, in `.swap`. While a `.swap` log is
there, recovery finishes the exchange; as long as a `.cleaned` file is, it throws the new segment away.
"""
