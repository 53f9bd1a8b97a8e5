"""The promises of every broker: queues, ledgers and quotas, what they hold, and what they accept."""
