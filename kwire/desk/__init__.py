"""Commands for a cluster that is there already: over the wire to any Kafka, and to the files of one."""
