"""What results mean: scores, groups over seeds, the paper's numbers."""
