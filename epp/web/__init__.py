"""The picker's page: what it shows of the pool, the queues, the events and the decisions, as JSON for the browser.

`adsum.web` decides who may see it and how it is sent; nothing here decides or changes anything.
"""
