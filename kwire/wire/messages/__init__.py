"""Schemas of the protocol's messages: one module per API, with its request and response."""
