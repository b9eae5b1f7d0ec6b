"""A model on disk.

manifest      which files belong to a checkpoint; which one is newest and best
segment_file  one segment as a safetensors file; initial weights from a file
writer        a server's part in making a checkpoint
"""

PUBLIC = ("manifest", "segment_file", "writer")
