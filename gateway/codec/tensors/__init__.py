"""Tensors: datatypes, and their values out to JSON and in from JSON."""
