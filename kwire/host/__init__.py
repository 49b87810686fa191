"""What a node asks of the world: time, chance, later calls, and work off the loop."""
