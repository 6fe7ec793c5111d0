"""The `sessile` command: one file for each group of verbs; `main` holds the table of them."""
