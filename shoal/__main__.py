"""Entry point of ``shoal`` and ``python -m shoal``; Ctrl-C ends it even during imports."""

from shoal.interrupts import exit_on_interrupt


def main() -> None:
    exit_on_interrupt()
    from shoal.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
