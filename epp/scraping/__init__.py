"""What workers say of their load: when a metrics page is read, how, and which lines of it count.

What the numbers mean for a pick belongs to `epp.scheduling`.
"""
