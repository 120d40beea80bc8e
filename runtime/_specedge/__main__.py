"""The command `specedge`, also as `python -m specedge`: takes Ctrl-C and SIGTERM before it imports the rest."""

try:
    from specedge.runtime.interrupt import end_with, take_over
except KeyboardInterrupt:
    raise SystemExit(130) from None


def main() -> int:
    """Run the command of this process and return its exit code."""
    take_over()
    from specedge.runtime.cli.main import main as command

    try:
        code = command()
    except KeyboardInterrupt:  # a second one, in what the first had begun
        code = 130
    end_with(code)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
