"""The shell: sockets, threads, signals and real time. The only home of async."""
