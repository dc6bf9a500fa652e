"""What pretrained models learn on a laptop."""
