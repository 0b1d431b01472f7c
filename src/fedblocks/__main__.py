"""`python -m fedblocks` is the same command as `fedblocks`."""

from fedblocks.cli import main

if __name__ == "__main__":
    main()
