"""Every fault, at every place of a test, on every choice of ranks, in every kind of world: what then comes out."""
