"""The commands that are not training, one module each with ``run(args) -> exit status``."""
