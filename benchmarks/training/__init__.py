"""Trainings with fptps.torch."""
