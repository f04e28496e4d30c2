"""A small, safe expression language for ``when:``, ``forbid:``, bounds and derived values.

Grammar (Python's own syntax, a subset): numbers, strings, ``true``/``false``/``null``, names with dots
(``max_num_seqs``, ``hardware.sm``, ``model.is_moe``), lists, ``not and or``, comparisons (chained too, ``in`` and
``not in``), ``+ - * / // %``, unary minus, ``a if c else b``, and the functions ``min max ceil floor round abs
int len``. Parsed with :mod:`ast`, walked by this module: nothing is ever executed.
"""
