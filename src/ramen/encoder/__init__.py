"""An image tower as a pure function of images and one flat vector of norm parameters."""
