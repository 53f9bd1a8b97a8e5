"""What every broker promises: queues, ledgers and quotas, what they hold, and what they accept."""
