"""`python -m fptps` is the command `fptps`."""

from ._cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main(prog_name="fptps")
