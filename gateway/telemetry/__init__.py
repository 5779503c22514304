"""What operators see of finished exchanges: metrics and log lines. Not here: any decision."""
