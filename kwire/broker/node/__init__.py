"""The parts of a node (a broker, a controller or both), their wiring, and the node's life cycle."""
