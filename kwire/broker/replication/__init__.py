"""Replication: leaders and followers of partitions, the ISR, the high watermark, and replica moves."""
