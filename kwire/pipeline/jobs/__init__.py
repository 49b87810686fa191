"""The jobs of `kwire pipeline <job>`, a module each. Programs may import them, too."""
