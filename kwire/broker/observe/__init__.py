"""What a node tells of itself to those who run it: its health, its metrics, its last requests."""
