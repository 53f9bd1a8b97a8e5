"""What attacks share: their victims, those who ask them meanwhile, and how figures are printed. No attack lives here."""
