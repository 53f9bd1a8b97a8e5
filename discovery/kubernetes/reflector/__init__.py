"""LIST and WATCH of any resource: the states of a Reflector, its events, and those who read them.

Nothing here knows which resource it is.
"""
