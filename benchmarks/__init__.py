"""Measures what the plugin costs beside the usual ways to test on several ranks: ``python -m benchmarks``."""
