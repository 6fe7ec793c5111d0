"""The upkeep of a store: checks and repairs, pruning, the trash, blobs that nobody names, and what other agents would delete."""
