"""The clients' side: listeners, connections, requests with their bodies, and replies."""
