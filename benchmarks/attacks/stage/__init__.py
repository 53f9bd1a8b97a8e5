"""Shared by the attacks: victims, clients that probe them meanwhile, and the printed figures. Holds no attack."""
