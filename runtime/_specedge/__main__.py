"""`python -m specedge`: the same as the command `specedge`."""

from specedge.runtime.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
