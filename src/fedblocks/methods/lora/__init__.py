"""Methods over low-rank adapters: what is shared, and how products are averaged."""
