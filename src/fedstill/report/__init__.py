"""What people look at: the terminal, tables, figures, pages. Computes no metric of its own."""
