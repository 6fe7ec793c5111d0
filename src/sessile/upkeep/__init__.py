"""Upkeep: compaction, checks and repairs, pruning, unused blobs, disk use, and copies of sessions that agents delete."""
