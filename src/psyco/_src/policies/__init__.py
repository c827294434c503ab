"""What acts: the network of the paper and its file, policies of others, and the protocol that both follow."""
