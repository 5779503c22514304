"""Bytes to meaning and back, without I/O, clock or HTTP.

`tensors` converts the values of tensors to JSON and back, `values` those of short text, `json` reads documents that
arrive in pieces, `inference` is what an inference is in every dialect, `v2` reads and writes it as requests and answers
of the V2 protocol, `dialects` writes and reads it for servers that speak something else. `compression` is what a body
may be wrapped in.

Long work is a generator that yields after every bounded step, so that a caller on an event loop can let others run.
"""
