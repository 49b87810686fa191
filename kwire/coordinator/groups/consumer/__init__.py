"""Consumer groups of the protocol of KIP-848: the coordinator shares the partitions out."""
