"""The command `adsum`: our four programs behind one name. Nothing imports it, and it holds nothing of what they do."""
