"""The backends' side: connections, attempts, deadlines, health, and questions to servers."""
