"""Client quotas: which one applies to a client, and whether it is exceeded. KIP-13, KIP-124, KIP-599."""
