"""Scenarios, one module per subject. Each scenario is a function that returns an observation of a broker."""
