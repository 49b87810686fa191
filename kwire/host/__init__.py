"""The operating system as a node sees it: clocks, timers, random numbers, worker threads and loggers."""
