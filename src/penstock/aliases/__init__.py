"""A folder for `sys.path` and PYTHONPATH: packages in here stand for names of other libraries.

`penstock.alias` puts it there; its packages are imported by those names only in processes that inherited the path.
Never imported as `penstock.aliases`, and nothing of Penstock lies here.
"""
