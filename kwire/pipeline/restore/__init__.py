"""Restoring an archive to the data directory of a broker, with every offset and gap preserved."""
