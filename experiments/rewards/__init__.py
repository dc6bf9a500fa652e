"""Studies of rewards that come from interaction, and of judges that learn."""
