"""Errors that end a command with one sentence on standard error and an exit status."""

from __future__ import annotations


class CommandError(Exception):
    """An error that the command reports in one sentence: what is wrong, and what to do."""

    status: int = 1
    """Exit status of the command."""


class UsageError(CommandError):
    """An option or argument that is invalid, or that contradicts another one."""

    status = 2
