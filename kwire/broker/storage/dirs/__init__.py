"""Log directories: their owners, the logs in them, and the copying of logs between them."""
