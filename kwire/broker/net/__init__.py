"""The I/O shell: sockets, threads, signals and real time. Only this package uses async."""
