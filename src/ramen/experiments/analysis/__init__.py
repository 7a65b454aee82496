"""Analysis of results: scores, groups over seeds, comparison with the paper."""
