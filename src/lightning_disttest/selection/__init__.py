"""Which test runs where: marks, filters and grouping."""
