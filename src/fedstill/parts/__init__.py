"""What methods are composed of: learners, losses, gathers, attacks."""
