"""Log compaction: only the last record of each key is kept. KIP-58, KIP-354, KIP-534.

The broker chooses a log and the part to clean (`log_to_clean`). It sends the job to a worker as a line of
JSON, and replaces the old segments by the segments that the worker has written (`log_cleaner`,
`segment_swap`). A worker is a separate process (`worker`), because a busy Python thread would delay every
client.

The worker reads the keys of the dirty part of the log. It scans that part backward and collects a set of keys
(`backward_key_scan`). If that is not possible, it scans forward and builds a map from keys to batches
(`offset_map`). Then it copies the log, one group of segments at a time, without superseded batches and
records (`log_rewriter`, `batch_filter`, `batch_rebuild`). The kept records have their old offsets, so removed
records leave gaps. A batch keeps its first and last offset when records are removed from it.

Some data is kept although it is not the last record of a key:
- the last batch of a producer, without records, so that its sequence is known when producer state is rebuilt;
- the last batch of the cleaned part, without records, so that the log end offset does not go back;
- a tombstone, for delete.retention.ms after the first cleaning that read it. That cleaning stores the delete
  horizon in the base timestamp of the batch and sets bit 6 of the attributes;
- a transaction marker, until a cleaning has found no records of the transaction, and then as long as a
  tombstone.

The files of an incomplete segment have the suffix `.cleaned`. The files of a complete and synced segment have
the suffix `.swap`. Log recovery completes a swap if there is a `.swap` log file, and deletes `.cleaned`
files.
"""
