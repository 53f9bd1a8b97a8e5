"""What we claim about speed, measured: `make bench`. Figures, machine, versions and dates are in README.md here."""
