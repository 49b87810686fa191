"""Handlers for records: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""
