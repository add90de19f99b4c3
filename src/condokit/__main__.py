"""Run the command line by `python -m condokit`."""

from condokit.cli import main

if __name__ == "__main__":
    main()
