"""Handlers for requests from other nodes to the controller: registration, heartbeats, Envelope, replicas."""
