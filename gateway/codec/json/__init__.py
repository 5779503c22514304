"""JSON documents that arrive in pieces: where things are, and what takes them."""
