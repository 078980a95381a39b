"""The memory of a device: arrays by region, gradient buckets, and what the host allocator does."""
