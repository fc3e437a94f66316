"""Carry a plan out: read chunks ahead, gather rows, decode them into batches, transform, deliver in order.

Takes an `EpochPlan` and a source, gives batches. Knows threads, processes, clocks and bytes; knows nothing of URLs,
frameworks or how an order is chosen.
"""
