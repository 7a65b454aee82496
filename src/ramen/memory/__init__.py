"""What methods remember of a stream."""
