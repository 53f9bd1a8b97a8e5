"""The web pages of our programs: one stylesheet, one frame, live data for all open browsers, and who may see them.

Nothing of one program lives here: each brings its own HTML, its module and the functions that say what it shows.
"""
