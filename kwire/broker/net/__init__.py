"""Network I/O of a node: the event loop, its worker threads, listeners and connections."""
