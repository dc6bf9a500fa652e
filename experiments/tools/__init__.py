"""Studies of agents that call tools, plan for others, build their organisation or keep memories."""
