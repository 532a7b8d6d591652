"""What fptps is measured against, and the program that compares: see README.md here."""
