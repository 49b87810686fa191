"""The services of the operating system that a node uses: clocks, timers, random numbers, threads, loggers."""
