"""The exception of every check in a simulation."""


class Violation(Exception):
    """An invariant does not hold: a bug in the broker, in the simulated program, or in the simulation."""
