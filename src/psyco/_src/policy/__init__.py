"""What acts: networks, files of ours, policies of others."""
