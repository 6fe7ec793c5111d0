"""Contract tests for authors of agents, stores and blob stores."""
