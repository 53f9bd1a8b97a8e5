"""The picker's page: what it shows of the pool, the queues, the events and the decisions, as JSON for the browser.

Who may see it and how it is sent is `adsum.web`; nothing here decides or changes anything.
"""
