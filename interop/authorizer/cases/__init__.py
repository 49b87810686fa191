"""The cases of the matrix, by the kind of API. The import of this package adds all of them to `CASES`."""

from interop.authorizer.cases import cluster, configs, groups, nodes, records, security, topics, transactions

__all__ = ["cluster", "configs", "groups", "nodes", "records", "security", "topics", "transactions"]
