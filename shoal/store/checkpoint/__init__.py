"""A model on disk: segment files and the manifest that names them."""
