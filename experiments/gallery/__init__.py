"""Studies of small pretrained models on a laptop."""
