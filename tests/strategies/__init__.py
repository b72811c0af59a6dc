"""Faults in the hooks of a fit: each strategy x hook x fault x ranks, and that every rank's part is in the report."""
