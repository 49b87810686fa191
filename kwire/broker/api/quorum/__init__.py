"""Handlers for the metadata quorum: Fetch, FetchSnapshot, DescribeQuorum, elections and voter changes."""
