"""The rows of one table in memory, and the update rules that change them.

table      ``ServerTable``: checked pushes and pulls of rows
slab       how rows lie in memory;  arena: where that memory comes from
admission  which keys of a push get a row
update     the update rules by name;  rules: shoal's own, as functions
codegen    compiles a rule into kernels;  function_source: a function as text
kernels    compiled loops
"""

PUBLIC = (
    "admission",
    "codegen",
    "kernels",
    "slab",
    "table",
    "update",
)  # for other packages; the other modules are private
