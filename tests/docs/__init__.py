"""Tests of the documentation and the examples: what they say is run and compared."""
