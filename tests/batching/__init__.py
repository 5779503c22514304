"""Requests that go to the server together."""
