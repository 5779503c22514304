"""Processes: the admin listener, the gateway in one process or in several workers, file descriptors."""
