"""Care for long sessions: compaction, summaries, hooks, and what is known of models."""
