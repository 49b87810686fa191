"""Scenarios, a module per subject: each function returns what it observed of a broker."""
