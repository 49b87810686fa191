"""Consumer groups (KIP-848), whose partitions the coordinator assigns."""
