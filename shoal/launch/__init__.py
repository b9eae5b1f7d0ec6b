"""Where processes run. A launcher answers two questions: start these; who am I?

``local`` runs a cluster on this machine, as threads or as processes that end with the parent, whatever happens to it.
"""
