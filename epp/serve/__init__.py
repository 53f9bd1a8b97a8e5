"""`adsum serve`: the picker, an Envoy and perhaps a dispatcher on one machine, as processes of one supervised group.

Each part is started by its command line, as the charts start it; nothing that picks or routes lives here.
"""
