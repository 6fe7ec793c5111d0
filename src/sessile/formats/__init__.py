"""Other agents' formats: pure translators between their rows and ours."""
