"""Observability of a node: health, metrics, slow requests, the flight recorder and the HTTP port."""
