"""A program for each peer; all have the same options and print the same JSON."""
