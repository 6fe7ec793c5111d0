"""Claude Code transcripts: rows, the chain that they form, and what a listing tells of them."""
