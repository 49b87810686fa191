"""The cluster's metadata: what its records come to, and who is told of it."""
