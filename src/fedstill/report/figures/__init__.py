"""Pictures of runs, as matplotlib figures: one file a subject."""
