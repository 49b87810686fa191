"""A node, which is a broker, a controller or both: its parts, their wiring, and its life cycle."""
