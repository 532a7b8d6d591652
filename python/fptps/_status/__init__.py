"""The command `fptps status`, and what `fptps run` says at its end."""
