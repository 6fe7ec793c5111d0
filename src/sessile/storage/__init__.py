"""Storage: the only layer that touches files, locks and databases."""
