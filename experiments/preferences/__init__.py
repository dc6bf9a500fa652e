"""Studies of ranks and preferences, and of loops around training that learn the objective."""
