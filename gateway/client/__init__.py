"""All of the clients' side: listeners, and what is read from a client and written to it."""
