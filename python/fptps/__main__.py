"""`python -m fptps` is the command `fptps`."""

from .cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main(prog_name="fptps")
