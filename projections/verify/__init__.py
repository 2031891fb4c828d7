"""The rules of `verify`, and the folds that find what breaks them."""
