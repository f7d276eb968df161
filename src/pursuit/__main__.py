"""``python -m pursuit`` is the command ``pursuit``."""

from .cli.main import main

if __name__ == "__main__":
    main()
