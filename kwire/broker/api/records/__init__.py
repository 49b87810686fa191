"""Records: written, read, and found by offset, time and epoch."""
