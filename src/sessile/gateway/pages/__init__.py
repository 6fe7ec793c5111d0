"""What the web page asks for: all operations below `/v1/view`."""
