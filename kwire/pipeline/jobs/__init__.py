"""The jobs of `kwire pipeline <job>`, one module per job. Programs may import the modules, too."""
