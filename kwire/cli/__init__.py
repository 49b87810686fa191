"""The command kwire."""
