"""What every port of ours shares: sockets, how many connections they hold and for how long, and a log that stays short.

No protocol lives here but the HTTP/1.1 pages over aiohttp that all programs have; nothing here knows what they say.
"""
