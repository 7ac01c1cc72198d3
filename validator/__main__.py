"""`python -m validator` is `image-matrix`."""

from validator.cli import main

if __name__ == "__main__":
    main()
