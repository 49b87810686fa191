"""An archive as the data directory of a broker: segment files with every offset and gap as it was."""
