"""The server's side: rounds over a network, jobs, who takes part. Start with `rounds`."""
