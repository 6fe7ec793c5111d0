"""Other agents' stores: their files found, read, and written as their owners do."""
