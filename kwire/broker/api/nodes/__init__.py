"""What the nodes of a cluster ask of its controller: registrations, heartbeats, and what they forward."""
