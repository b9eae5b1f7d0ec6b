"""``shoal`` and ``python -m shoal``: the command line, of which Ctrl-C makes an end even while it is imported."""

from shoal.startup import quietly


def main() -> None:
    quietly()
    from shoal.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
