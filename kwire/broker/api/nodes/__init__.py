"""Handlers for requests of other nodes to the controller: registration, heartbeats, Envelope, replicas."""
