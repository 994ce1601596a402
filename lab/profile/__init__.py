"""A GPU's profile, fitted to times."""
