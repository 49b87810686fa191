"""Log directories: which logs lie where, who owns them, and moves between them."""
