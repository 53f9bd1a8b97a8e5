"""The command `adsum`, which starts the four programs. Nothing imports it, and no program logic lives here."""
