"""Sessions for people to read: HTML fragments and pages, Markdown, and text."""
