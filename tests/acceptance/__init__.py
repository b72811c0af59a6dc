"""Whole runs of pytest in a process of their own, one file per behaviour."""
