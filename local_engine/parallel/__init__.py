"""One model over several processes: what each holds, how they add up, who watches whom. Start with shard.py."""
