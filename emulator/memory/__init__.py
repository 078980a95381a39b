"""The memory of a device: arrays by region, gradient buckets, host allocator settings."""
