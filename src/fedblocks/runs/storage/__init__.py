"""What a run leaves on disk: its folder, its record, its checkpoints. May import the core."""
