"""Who is calling: keys, their keyed hashes, and the identity behind each."""
