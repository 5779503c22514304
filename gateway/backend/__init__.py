"""All of the backends' side: connections, attempts, deadlines, metadata."""
