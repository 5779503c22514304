"""Processes: the admin listener, the application in one process, the workers."""
