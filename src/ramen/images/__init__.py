"""From image files to the tensors that an encoder takes."""
