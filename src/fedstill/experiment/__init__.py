"""A named, typed, resumable experiment."""
