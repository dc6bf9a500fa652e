"""Rewards that come from the interaction, and judges that learn."""
