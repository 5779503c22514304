"""Finished exchanges as operators see them: metrics, log lines, spans and the numbers of the status page."""
