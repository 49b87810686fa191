"""The jobs, a module each: what `kwire pipeline <job>` runs, and what programs may import."""
