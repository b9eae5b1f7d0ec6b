"""Entry point of ``shoal`` and ``python -m shoal``; Ctrl-C ends it even during imports."""

from shoal.startup import quietly


def main() -> None:
    quietly()
    from shoal.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
