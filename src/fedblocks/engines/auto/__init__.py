"""Which engine to use: by what is known of net and device, or by a trial."""
