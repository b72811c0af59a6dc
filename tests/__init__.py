"""The suite of lightning_disttest."""
