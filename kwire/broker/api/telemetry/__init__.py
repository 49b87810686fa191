"""Client metrics: subscriptions, client instances and the metrics that clients push. KIP-714."""
