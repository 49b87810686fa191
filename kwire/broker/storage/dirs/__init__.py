"""Log directories: which logs lie where, who owns them, and copies that are to take their places."""
